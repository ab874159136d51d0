"""A fleet on a real Ray cluster of this machine."""

import signal
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: make test-fleet")

from evict_profile.fleet.run import FleetFolder
from evict_profile.sweep.machine import cpu_name
from tests.command import refused
from tests.fleet.conftest import NAME, write_fleet
from tests.fleet.test_run import (
    EXIT_TIMEOUT_S,
    MODELS,
    parts_of,
    start,
    sweeps_of,
    until,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address():
    """One node on which two sweeps run side by side."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path.cwd()))
        patch.setenv("SCRIPTED_DEVICE", cpu_name())
        patch.delenv("OMP_NUM_THREADS", raising=False)
        node = {"num_cpus": 2, "resources": {"machine": 2, "sglang": 1}}
        cluster = Cluster(initialize_head=True, head_node_args=node)
        yield cluster.address
        cluster.shutdown()


def test_a_killed_worker_is_retried_and_a_killed_driver_continues(address, tmp_path):
    write_fleet(tmp_path, env={"SCRIPTED_SLEEP": "0.02"}, models=MODELS)
    first = start(tmp_path, "--address", address)
    until(lambda: len(sweeps_of(tmp_path)) == 2 and len(parts_of(tmp_path)) >= 2)
    killed = sweeps_of(tmp_path)[0]
    words = killed.cmdline()
    assert "OMP_NUM_THREADS" not in killed.environ()
    worker = killed.parent()
    assert "ray::" in " ".join(worker.cmdline())
    worker.kill()
    before = until(lambda: not killed.is_running() and parts_of(tmp_path))
    until(lambda: words in [sweep.cmdline() for sweep in sweeps_of(tmp_path)])
    first.send_signal(signal.SIGKILL)
    first.communicate()
    until(lambda: not sweeps_of(tmp_path))
    said, _ = start(tmp_path, "--address", address).communicate(timeout=EXIT_TIMEOUT_S)
    assert "2 jobs: 2 published" in said, said
    assert before.items() <= parts_of(tmp_path).items()
    assert FleetFolder(tmp_path / "fleet").outcomes()[NAME].keys() == {"table"}


def test_an_address_without_a_cluster_is_one_sentence(tmp_path):
    write_fleet(tmp_path)
    words = ("fleet", "fleet.yaml", "--address", "127.0.0.1:1")
    assert "ray start --head" in refused(*words, folder=tmp_path)
