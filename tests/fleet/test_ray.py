"""The fleet on Ray: placement, kills, silence. Real processes, logical resources."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

ray = pytest.importorskip("ray", reason="Ray is not installed: make test-fleet")

from evict_profile.fleet.cluster import RayCluster, demand, fits  # noqa: E402
from evict_profile.fleet.folder import FleetFolder  # noqa: E402
from evict_profile.fleet.plan import ShardJob, make_plan  # noqa: E402
from evict_profile.fleet.spec import Device, EngineEnvironment  # noqa: E402
from evict_profile.fleet.task import Event, ShardRequest  # noqa: E402
from evict_profile.fleet.watch import newest_tables, watch  # noqa: E402
from evict_profile.records import to_mapping  # noqa: E402
from evict_profile.sweep.machine import cpu_name  # noqa: E402
from tests.fleet.conftest import FLEET, SHORT  # noqa: E402
from tests.sweep.conftest import SCRIPTED, comparable  # noqa: E402

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PATIENCE_S = 240.0
NAME = "tiny_short_bfloat16_scripted_cpu"


def until(ready):
    """What is true at last."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        if found := ready():
            return found
        time.sleep(0.1)
    raise AssertionError("waited in vain")


class Command:
    """`evict-profile fleet` in a process of its own, with Ray below it."""

    def __init__(self, folder):
        self.folder, self.fleet = folder, FleetFolder(folder / "fleet")
        self.process: subprocess.Popen[str] | None = None

    def write(self, **changes):
        """The fleet that is run; each sample takes a moment."""
        own = {"scripted": {"runner": str(SCRIPTED), "env": {"SCRIPTED_SLEEP": "0.02"}}}
        fleet = {**FLEET, "runners": own, **changes}
        (self.folder / "fleet.yaml").write_text(yaml.safe_dump(fleet))
        (self.folder / "short.yaml").write_text(yaml.safe_dump(SHORT))

    def start(self, *more):
        words = ["fleet", "fleet.yaml", "--out", "fleet", "--tables", "tables", *more]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "evict_profile", *words],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return self.process

    def finish(self, *more):
        """Run to the end; what it printed."""
        said, _ = self.start(*more).communicate(timeout=PATIENCE_S)
        return said

    def parts(self):
        """Rounds that the driver has stored."""
        parts = (self.folder / "fleet/pairs").glob("*/*/parts/*.parquet")
        return {str(path): path.read_bytes() for path in parts}

    def sweeps(self):
        """Sweeps that this test's tasks run, by their runner or their folder."""
        found = []
        for process in psutil.process_iter(["cmdline", "cwd"]):
            words = process.info["cmdline"] or []
            mine = process.info["cwd"] == str(self.folder)
            if "evict_profile.fleet.child" in words and mine:
                found.append(process)
        return found


@pytest.fixture
def command(tmp_path):
    """A fleet of one pair; nothing of it is left running."""
    made = Command(tmp_path)
    made.write()
    yield made
    if made.process and made.process.poll() is None:
        made.process.kill()
        made.process.wait()
    until(lambda: not made.sweeps())


def test_a_worker_killed_in_a_round_costs_that_round(command):
    """Its sweep ends with it, and the shard goes on from what was stored."""
    driver = command.start()
    before = until(lambda: len(command.parts()) >= 3 and command.parts())
    [sweep] = command.sweeps()
    worker = sweep.parent()
    assert worker and "ray::" in " ".join(worker.cmdline())
    worker.kill()
    until(lambda: not sweep.is_running())
    said, _ = driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode == 0, said
    assert "trying again" in said
    after = command.parts()
    assert before.items() <= after.items()
    rounds = [Path(path).stem for path in after]
    assert (
        len(rounds)
        == len(set(rounds))
        == max(int(r[:5]) for r in rounds) + ("00000-00" in rounds)
    )
    outcome = command.fleet.outcomes()[NAME]
    assert (outcome.state, outcome.tries) == ("published", 2)
    assert (
        "1 of 1 pairs are published"
        in (command.folder / "fleet/atlas.html").read_text()
    )


def test_a_killed_driver_costs_the_round_in_flight(command):
    """No sweep is left, the same command continues, and ends as an untouched one."""
    driver = command.start()
    until(lambda: len(command.parts()) >= 3)
    driver.kill()
    driver.communicate()
    until(lambda: not command.sweeps())
    before = command.parts()
    said = command.finish()
    assert "1 pairs: 1 published" in said
    assert before.items() <= command.parts().items()
    plan = command.fleet.plan()
    frame = command.fleet.store(plan.pairs[0].jobs[0]).frame()
    untouched = command.folder / "untouched"
    lines = (command.folder / "fleet/commands.txt").read_text().split()
    words = lines[lines.index("sweep") : lines.index("--out")]
    subprocess.run(
        [sys.executable, "-m", "evict_profile", *words, "--out", str(untouched)],
        cwd=command.folder, check=True, stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    import pandas as pd

    from evict_profile.sweep.store import Store

    pd.testing.assert_frame_equal(
        comparable(frame), comparable(Store(untouched).frame())
    )


def test_a_second_driver_is_refused_and_the_first_goes_on(command):
    driver = command.start()
    until(lambda: command.fleet.exists() and (command.fleet.folder / "lock").exists())
    second = Command(command.folder)
    assert "another process is writing into it" in second.finish()
    assert second.process and second.process.returncode == 2
    said, _ = driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode == 0, said


def test_ctrl_c_stops_cleanly_and_the_same_command_continues(command):
    """As a terminal sends it: to the whole process group."""
    driver = command.start()
    until(lambda: len(command.parts()) >= 2)
    os.killpg(driver.pid, signal.SIGINT)
    said, _ = driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode == 130, said
    assert "is kept, the same command continues it" in said
    until(lambda: not command.sweeps())
    before = command.parts()
    assert "1 pairs: 1 published" in command.finish()
    assert before.items() <= command.parts().items()


def test_a_node_that_never_answers_is_given_up(command):
    """Its worker is stopped, not dead: it says nothing, and holds the machine."""
    command.write(budget={"node_silence_minutes": 0.25})
    driver = command.start()
    until(lambda: len(command.parts()) >= 2)
    [sweep] = command.sweeps()
    worker = sweep.parent()
    assert worker
    worker.suspend()
    until(lambda: not sweep.is_running())
    said, _ = driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode == 0, said
    assert "its node said nothing for 0.25 min" in said


def test_shards_go_on_elsewhere_when_a_node_dies(command):
    """A cluster of three nodes, of which two offer the machine at a time."""
    from ray.cluster_utils import Cluster

    slow = {"runner": str(SCRIPTED), "env": {"SCRIPTED_SLEEP": "0.1"}}
    command.write(shards=2, runners={"scripted": slow})
    own = {"num_cpus": 1, "resources": {"machine": 1}}
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        nodes.add_node(**own)
        lost = nodes.add_node(**own)
        driver = command.start("--address", nodes.address)
        until(lambda: len({Path(p).parents[1] for p in command.parts()}) == 2)
        before = command.parts()
        nodes.remove_node(lost, allow_graceful=False)
        nodes.add_node(**own)
        said, _ = driver.communicate(timeout=PATIENCE_S)
    finally:
        nodes.shutdown()
    assert driver.returncode == 0, said
    assert "trying again" in said
    assert before.items() <= command.parts().items()
    assert command.fleet.outcomes()[NAME].tries == 3
    [equal] = (command.folder / "fleet/pairs").glob("*/merged/equal.json")
    assert "2/2 against 1/2" in equal.read_text()


@pytest.fixture(scope="module")
def cluster():
    """One machine that says it has four GPUs, and two environments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        ray.init(
            num_cpus=2, num_gpus=4, resources={"machine": 1, "sglang": 1},
            include_dashboard=False, object_store_memory=100 << 20,
            log_to_driver=False,
        )  # fmt: skip
        yield ray
        ray.shutdown()


def heard(cluster, count):
    """The first so many events that `kind` is not a beat."""
    found: list[tuple[ShardJob, Event]] = []

    def enough():
        found.extend(e for e in cluster.events(1.0) if e[1].kind != "beat")
        return len(found) >= count

    until(enough)
    return found


def request_of(job, **env):
    mappings = to_mapping(job.pair.model), to_mapping(job.pair.sweep)
    return ShardRequest(*mappings, job.shard, "", env, 10.0, 60.0)


def test_a_cpu_is_measured_by_one_at_a_time(cluster, plan):
    """The second begins when the first has ended."""
    tasks = RayCluster(cluster)
    for job in plan.pairs[0].jobs:
        tasks.start(job, request_of(job), {}, [])
    kinds = [event.kind for _, event in heard(tasks, 4)]
    assert kinds == ["started", "ended", "started", "ended"]


def test_what_is_asked_is_what_ray_holds(cluster, fleet_of):
    """GPUs, and the environment of an engine, while the task runs."""
    engine = {"runner": str(SCRIPTED), "resource": "sglang"}
    devices = {"gpu": {"gpus": 3.0, "cpus": 0.0}}
    [pair] = make_plan(fleet_of(runners={"scripted": engine}, devices=devices)).pairs
    tasks, [job] = RayCluster(cluster), pair.jobs
    tasks.start(job, request_of(job, SCRIPTED_SLEEP="1000"), {}, [])
    heard(tasks, 1)
    free = until(
        lambda: (f := cluster.available_resources()).get("GPU", 0) == 1.0 and f
    )
    assert free["sglang"] == pytest.approx(0.999)
    assert free["machine"] == 1.0
    tasks.stop(job)
    until(lambda: cluster.available_resources().get("GPU") == 4.0)


def test_what_no_node_offers_has_no_home(cluster, fleet_of):
    tasks = RayCluster(cluster)
    devices = {"h100": {"gpus": 1.0, "accelerator": "H100"}, "many": {"gpus": 5.0}}
    for pair in make_plan(fleet_of(devices=devices)).pairs:
        assert tasks.homes(pair.jobs[0]) == []
    [pair] = make_plan(fleet_of(devices={"gpu": {"gpus": 4.0}})).pairs
    assert len(tasks.homes(pair.jobs[0])) == 1
    assert "GPU 4" in tasks.offers()


def test_a_table_is_rechecked_where_its_device_is(cluster, command, monkeypatch):
    """Same, drifted, and gone."""
    device = {"SCRIPTED_DEVICE": f"{cpu_name()} scripted"}
    paper = {"runner": str(SCRIPTED)}
    command.write(
        runners={"here": {**paper, "env": device}, "gone": paper}, sweeps=["short.yaml"]
    )
    said = command.finish()
    assert "2 pairs: 2 published" in said
    tables = newest_tables(command.folder / "tables")

    def verdicts(**env):
        engine = EngineEnvironment(str(SCRIPTED), env={**device, **env})
        return [f.verdict for f in watch(cluster, tables, [engine], PATIENCE_S)]

    assert verdicts() == ["same", "gone"]
    assert verdicts(SCRIPTED_SLOPE="1.3") == ["drifted", "gone"]
    assert verdicts(SCRIPTED_DEVICE="another") == ["gone", "gone"]


def test_an_address_without_a_cluster_is_one_sentence(command):
    said = command.finish("--address", "127.0.0.1:1")
    assert command.process and command.process.returncode == 2
    assert "ray start --head" in said.splitlines()[-1]


def test_a_demand_is_all_that_a_device_and_an_engine_ask():
    asked = demand(
        Device(gpus=2.0, accelerator="H100"), EngineEnvironment("x", resource="env")
    )
    assert asked["accelerator_type"] == "H100"
    offered = {"CPU": 1.0, "GPU": 2.0, "env": 1.0, "accelerator_type:H100": 1.0}
    assert fits(asked, offered)
    assert not any(fits(asked, {**offered, name: 0.0}) for name in offered)
    assert demand(Device(), EngineEnvironment("x"))["resources"] == {"machine": 1.0}
    assert demand(Device(resources={}), EngineEnvironment("x"))["resources"] == {}
    assert json.dumps(asked)
