"""A real llama-server, whose own drafts and counts are probed."""

from pathlib import Path

import pytest

from evict_profile.probe.record import read_probe
from tests.command import evict

xllamacpp = pytest.importorskip("xllamacpp", reason="needs evict-profile[llama]")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    pytest.importorskip("gguf", reason="needs evict-profile[llama]")
    from examples.small_world.export_gguf import write_world

    path = tmp_path_factory.mktemp("gguf") / "world.gguf"
    write_world(Path("worlds/stdlib"), path, 0, 0, "F32")
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("drafts", [0, 2])
def test_its_steps_and_accepted_tokens_are_found(world, drafts, tmp_path):
    """Nothing is judged by a clock: the machine may be busy."""
    from benchmarks.llama_server import Setting, params_of

    params = params_of(Setting(world, world if drafts else "", drafts))
    params.port, params.endpoint_metrics, params.n_parallel = 0, True, 2
    server = xllamacpp.Server(params)
    words = ("--raw", "--batch", "1,2", "--minutes", "0.02", "--out", "runs.jsonl")
    done = evict("probe", server.listening_address, *words, folder=tmp_path)
    assert done.exit_code == 0, done.output
    [(probed, waves)] = read_probe(tmp_path / "runs.jsonl")
    assert (probed.server.engine, probed.server.drafts) == ("llama.cpp", drafts)
    assert {wave.batch for wave in waves} == {1, 2}
    assert all(wave.tokens_per_s > 0.0 for wave in waves)
    # The model drafts for itself, so that all is accepted.
    accepted = [wave.accepted or 1.0 for wave in waves]
    assert accepted == pytest.approx([drafts + 1] * len(waves), rel=0.05)
