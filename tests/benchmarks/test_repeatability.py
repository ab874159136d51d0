"""Two runs whose distance is known."""

import json
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.repeatability import ESTIMATORS, LATENCY, main, ratios_of
from evict_profile.config import load_model
from evict_profile.records import replace
from evict_profile.sweep.store import Store
from tests.factories import write_run


def test_a_run_is_no_distance_from_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every cell is compared."""
    run = write_run(tmp_path / "run")
    assert main([str(run.folder), str(run.folder)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(found["difference"][name]["p95"] == 0.0 for name in ESTIMATORS)
    assert len(found["ratios"]) == found["difference"][LATENCY]["cells"] > 20


def test_ratios_are_of_the_second_over_the_first(tmp_path: Path) -> None:
    """Cell by cell; here all samples of the second took twice as long."""
    first = write_run(tmp_path / "first", noise=1e-6)
    second = write_run(tmp_path / "second", noise=1e-6)
    for part in second.parts.glob("*.parquet"):
        frame = pd.read_parquet(part)
        frame["clock_us"] *= 2.0
        frame.to_parquet(part, index=False)
    found = ratios_of(first, second, ESTIMATORS[LATENCY])
    assert all(ratio == pytest.approx(2.0, rel=1e-3) for ratio in found.values())


def test_a_folder_without_a_sweep_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one sentence."""
    run = write_run(tmp_path / "run")
    assert main([str(run.folder), str(tmp_path / "empty")]) == 2
    assert "holds no sweep" in capsys.readouterr().err


def with_facts(store: Store, **facts: str) -> Store:
    """The same run, as if taken under others."""
    header = store.header()
    store.create(replace(header, fingerprint={**header.fingerprint, **facts}))
    return store


def test_runs_of_two_machines_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What differs is named."""
    first = write_run(tmp_path / "first")
    other = with_facts(write_run(tmp_path / "other"), device="another", engine="else")
    assert main([str(first.folder), str(other.folder)]) == 2
    told = capsys.readouterr().err
    assert "device: another here, a test there; engine: else here" in told


def test_runs_of_two_models_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though of one machine."""
    first, other = write_run(tmp_path / "first"), write_run(tmp_path / "other")
    other.create(replace(other.header(), model=load_model("tiny-qwen3")))
    assert main([str(first.folder), str(other.folder)]) == 2
    assert "model: tiny-qwen3 here, tiny there" in capsys.readouterr().err


def test_captured_is_compared_with_eager(tmp_path: Path) -> None:
    """Other kernels of attention may come with it."""
    captured = with_facts(
        write_run(tmp_path / "captured"), graph_mode="cuda-graph", attention_backend="a"
    )
    eager = write_run(tmp_path / "eager")
    assert main([str(captured.folder), str(eager.folder)]) == 0
