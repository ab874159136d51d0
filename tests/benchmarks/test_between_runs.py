"""Two runs whose distance is known."""

import json
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.between_runs import main, ratios
from tests.known_run import write_run


def test_a_run_is_no_distance_from_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every cell is compared."""
    run = write_run(tmp_path / "run")
    assert main([str(run.folder), str(run.folder)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ratio_median"] == 1.0 and found["difference_p95"] == 0.0
    assert len(found["ratios"]) == found["cells"] > 20


def test_ratios_are_of_the_second_over_the_first(tmp_path: Path) -> None:
    """Cell by cell; here all samples of the second took twice as long."""
    first = write_run(tmp_path / "first", noise=1e-6)
    second = write_run(tmp_path / "second", noise=1e-6)
    for part in second.parts.glob("*.parquet"):
        frame = pd.read_parquet(part)
        frame["clock_us"] *= 2.0
        frame.to_parquet(part, index=False)
    assert all(
        r == pytest.approx(2.0, rel=1e-3) for r in ratios(first, second).values()
    )


def test_a_folder_without_a_sweep_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one sentence."""
    run = write_run(tmp_path / "run")
    assert main([str(run.folder), str(tmp_path / "empty")]) == 2
    assert "holds no sweep" in capsys.readouterr().err
