"""Two runs whose distance is known."""

import json

import pandas as pd
import pytest

from benchmarks.repeatability import ESTIMATORS, LATENCY, main, ratios_of
from evict_profile.config import load_model
from evict_profile.records import replace
from tests.factories import write_run


def test_a_run_is_no_distance_from_itself(tmp_path, capsys):
    """Every cell is compared."""
    run = write_run(tmp_path / "run")
    assert main([str(run.folder), str(run.folder)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(found["difference"][name]["p95"] == 0.0 for name in ESTIMATORS)
    assert len(found["ratios"]) == found["difference"][LATENCY]["cells"] > 20


def test_ratios_are_of_the_second_over_the_first(tmp_path):
    """Cell by cell; here all samples of the second took twice as long."""
    first = write_run(tmp_path / "first", noise=1e-6)
    second = write_run(tmp_path / "second", noise=1e-6)
    for part in second.parts.glob("*.parquet"):
        frame = pd.read_parquet(part)
        frame["clock_us"] *= 2.0
        frame.to_parquet(part, index=False)
    found = ratios_of(first, second)[LATENCY]
    assert found.to_numpy() == pytest.approx(2.0, rel=1e-3)


def with_facts(store, **facts):
    """The same run, as if taken under others."""
    header = store.header()
    store.create(replace(header, fingerprint={**header.fingerprint, **facts}))
    return store


@pytest.fixture
def runs(tmp_path):
    """Two runs of one plan."""
    return write_run(tmp_path / "first"), write_run(tmp_path / "other")


def test_runs_that_differ_in_what_latency_depends_on_are_refused(
    runs, tmp_path, capsys
):
    """Another machine, another model, or no run at all; each is named."""
    first, other = runs

    def refusal(folder):
        assert main([str(first.folder), str(folder)]) == 2
        return capsys.readouterr().err

    assert "holds no sweep" in refusal(tmp_path / "empty")
    with_facts(other, device="another", engine="else")
    said = refusal(other.folder)
    assert "device: another here, a test there; engine: else here" in said
    other.create(replace(first.header(), model=load_model("tiny-qwen3")))
    assert "model: tiny-qwen3 here, tiny there" in refusal(other.folder)


def test_captured_is_compared_with_eager(runs):
    """Other kernels of attention may come with it."""
    captured, eager = runs
    with_facts(captured, graph_mode="cuda-graph", attention_backend="a")
    assert main([str(captured.folder), str(eager.folder)]) == 0
