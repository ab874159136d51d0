"""Predictions are hashed; measured runs are scored beside simple rivals."""

import hashlib

import pandas as pd
import pytest

from benchmarks.predictions import __main__ as predictions
from evict_profile.io import data_root

ROW = "qwen3-30b-a3b,8,4,3,1,1.6,1.4,2.0,87.2,bfloat16,0"
HEADER = "model,batch,width,levels,topk,ratio,low,high,union,dtype,table_sha256"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A file of one prediction, with its hash."""
    path = tmp_path / "2026-11-27-posted.csv"
    path.write_text(f"# a source\n{HEADER}\n{ROW}\n")
    own = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / predictions.SUMS).write_text(f"{own}  {path.name}\n")
    monkeypatch.setattr(predictions, "HOME", tmp_path)
    return tmp_path


def test_shipped_predictions_are_those_that_were_hashed():
    names = {path.name for path in predictions.known()}
    assert names == {path.name for path in predictions.HOME.glob("*.csv")}


def test_the_page_has_the_hash_of_each_file():
    page = (data_root() / "docs/research/measurements.md").read_text()
    for line in (predictions.HOME / predictions.SUMS).read_text().splitlines():
        own, name = line.split()
        assert f"| `{name}` | `{own}` |" in page


def test_changed_predictions_are_refused(home, capsys):
    path = home / "2026-11-27-posted.csv"
    path.write_text(path.read_text().replace("1.6", "1.7"))
    assert predictions.main([str(path)]) == 2
    assert "was changed after it was hashed" in capsys.readouterr().err


def test_a_measured_run_is_scored_by_its_setting(home, tmp_path, capsys):
    runs = tmp_path / "runs.csv"
    runs.write_text(
        "model,batch,width,levels,topk,measured\n"
        "qwen3-30b-a3b,8,4,3,1,1.76\nqwen3-30b-a3b,8,6,5,1,1.9\n"
    )
    assert predictions.main([str(runs)]) == 0
    printed = capsys.readouterr().out
    assert "1 of its settings were measured" in printed
    assert "9.5" in printed  # 100 ln(1.76 / 1.6)


def test_runs_without_a_column_are_refused(home, tmp_path, capsys):
    runs = tmp_path / "runs.csv"
    runs.write_text("model,batch\nqwen3-30b-a3b,8\n")
    assert predictions.main([str(runs)]) == 2
    assert "'measured'" in capsys.readouterr().err


def test_coverage_counts_runs_inside_their_interval():
    both = pd.DataFrame(
        {
            "width": [4, 4],
            "ratio": [1.6, 1.6],
            "low": [1.4, 1.4],
            "high": [2.0, 2.0],
            "measured": [1.7, 2.5],
        }
    )
    assert predictions.scores(both).loc["predicted", "inside 95 %"] == 50.0
