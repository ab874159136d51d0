"""Ranks fail together, or the one that failed ends the others soon."""

import time
from pathlib import Path

import pytest

from evict_profile.cells import Cell
from evict_profile.config import load_model
from evict_profile.runner import Runner, RunnerCrash, RunnerRefusal

SCRIPT = Path(__file__).with_name("faulty_ranks.py")
OPTIONS = {"engine": {"tp": 2}}
CELL = Cell("layers", 1, 8, 64, 1, "balanced")


def run(fault, folder, monkeypatch):
    """What the toolkit gets of two ranks with a fault, and the seconds it took."""
    monkeypatch.setenv("FAULT", fault)
    with Runner(str(SCRIPT), None, folder / "runner.log") as runner:
        begun = time.monotonic()
        with pytest.raises((RunnerCrash, RunnerRefusal)) as caught:
            runner.open(load_model("tiny"), OPTIONS)
            runner.measure(CELL, [])
        assert time.monotonic() - begun < 60.0
    return caught


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("1:open:ends", "rank 1: it ended; see the log above"),
        ("1:measure:refuses", "rank 1: no memory for measure"),
        ("0:measure:refuses", "rank 0: no memory for measure"),
    ],
)
def test_one_rank_that_fails_ends_all(fault, says, tmp_path, monkeypatch):
    caught = run(fault, tmp_path, monkeypatch)
    assert caught.type is RunnerCrash
    assert f"ended with status 1: {says}" in str(caught.value)


@pytest.mark.parametrize("fault", ["0:open:refuses", "0:measure:both refuse"])
def test_a_refusal_that_leaves_no_rank_waiting_is_an_answer(
    fault, tmp_path, monkeypatch
):
    caught = run(fault, tmp_path, monkeypatch)
    assert caught.type is RunnerRefusal
    assert caught.value.kind == "oom"
    assert "no memory for" in str(caught.value)
