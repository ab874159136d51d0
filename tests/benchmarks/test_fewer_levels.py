"""The benchmark of fewer levels: its texts, and its bounds in few steps."""

import json

import pytest

from benchmarks import fewer_levels
from benchmarks.fewer_levels import EASY, HARD, main, text


@pytest.mark.parametrize(("hard", "bounds"), [(1.0, HARD), (0.0, EASY)])
def test_drafts_of_a_text_are_right_as_often_as_they_are_sure(hard, bounds):
    sure, right = text(hard, 20_000, 2)
    assert bounds[0] <= sure.min() and sure.max() <= bounds[1]
    assert right.mean() == pytest.approx(sure.mean(), abs=0.01)


def test_hard_text_gains_and_easy_text_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(fewer_levels, "BATCHES", (1,))
    out = tmp_path / "gains.json"
    assert main(["--steps", "300", "--out", str(out)]) == 0
    found = {
        (g["text"], g["share"]): g["gain"] for g in json.loads(out.read_text())["gains"]
    }
    assert found["hard", 0.08] > found["hard", 0.04] > 0.0
    monkeypatch.setattr(fewer_levels, "LEAST", 1.0)
    assert main(["--steps", "40"]) == 1
