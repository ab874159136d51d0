"""What llama-server is predicted to take, and how it is compared with its clock."""

import sys
import time
from itertools import takewhile
from unittest.mock import MagicMock

import numpy as np
import psutil
import pytest

from benchmarks import llama_server
from benchmarks.llama_server import Setting, Sweep, compared, full_steps
from evict_profile.config import load_sweep
from evict_profile.records import replace
from evict_profile.table import CostTable, Staircase


def test_a_prediction_is_tokens_over_the_cost_of_the_step(saved_table):
    """Two were committed a step, which took 1.6 of plain decoding's; one turn late."""
    steps = tuple(100.0 + 20.0 * max(0, n - 1) for n in range(9))
    stairs = Staircase(1, 64, steps, steps, steps)
    table = replace(CostTable.load(saved_table), staircases=(stairs,))
    way = Setting("target", "draft", 2, 0.5)
    turn = {"us": [79.0, 80.0, 300.0], "committed": [1, 3, 2], "plain_us": 50.0}
    late = {**turn, "us": [500.0] * 3}
    [found] = compared({way: [turn] * 8 + [late]}, table, 0.03)
    assert found["predicted"] == pytest.approx(2.0 * 100.0 / (140.0 + 2 * 30.0))
    for name in ("measured", "low", "high"):
        assert found[name] == pytest.approx(1.25)
    assert found["error"] == pytest.approx(1.0 / 1.25 - 1.0)


def test_full_steps_are_told_by_when_tokens_come():
    """Three drafts at most: a step that begins with less than four to come is cut."""
    sizes, took_us = [1, 2, 3, 4, 1, 4, 2, 1], [9e4, 6e4, 3e4, 3.1e4, 3.2e4, 3.3e4]
    begins_us = np.cumsum([0.0, *took_us, 2e4])
    stamps_us = [
        begin_us + 50.0 * token
        for begin_us, size in zip(begins_us, sizes, strict=True)
        for token in range(size)
    ]
    us, committed = full_steps(np.array(stamps_us), n_max=3)
    assert us == pytest.approx([3e4, 3.1e4, 3.2e4])
    assert committed == [4, 1, 4]


def test_every_step_of_plain_decoding_is_full():
    us, committed = full_steps(np.arange(6) * 1e4, n_max=0)
    assert (us, committed) == ([1e4] * 3, [1] * 3)


@pytest.mark.parametrize(
    ("errors", "off"),
    [([0.05, -0.14, 0.02], False), ([0.0, 0.0, -0.16], True), ([0.07, -0.07], True)],
)
def test_predictions_too_far_off_are_a_miss(errors, off):
    names = ("predicted", "predicted_low", "predicted_high", "measured", "low", "high")
    rows = [
        {"setting": "n_max 2", "error": error, **dict.fromkeys(names, 1.0)}
        for error in errors
    ]
    assert llama_server.show(rows) is off


WRITES = """
import sys, time
while True:
    open(sys.argv[1], "a").write(".")
    time.sleep(0.001)
"""


def test_a_sweep_routes_the_replies_beside_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(psutil, "Popen", MagicMock())
    Sweep(tmp_path / "model.gguf", tmp_path / "target")
    spec = load_sweep(tmp_path / "target" / "sweep.json")
    assert spec.llama.text == str(tmp_path / llama_server.REPLIES_FILE)


def test_results_do_not_replace_a_model(tmp_path):
    model = tmp_path / "model.gguf"
    model.write_text("weights")
    assert llama_server.main([str(model), str(model), "--out", str(model)]) == 2
    assert model.read_text() == "weights"


def test_a_sweep_goes_on_in_its_turns_alone(tmp_path, monkeypatch):
    file, popen = tmp_path / "written", psutil.Popen
    file.touch()

    def writing(words, **options):
        return popen([sys.executable, "-c", WRITES, file], **options)

    monkeypatch.setattr(psutil, "Popen", writing)
    monkeypatch.setattr(llama_server, "SWEEP_TURN_S", 0.1)
    with Sweep(tmp_path / "model.gguf", tmp_path) as sweep:
        turns = takewhile(lambda _: not file.stat().st_size, range(600))
        assert all(sweep.turn() for _ in turns)
        written = file.stat().st_size
        time.sleep(0.05)
        assert 0 < written == file.stat().st_size
    assert sweep.process.wait(60) != 0
