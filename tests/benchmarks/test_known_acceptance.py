"""The judge of replay's and calibration's intervals judges by its populations."""

import json

import numpy as np
import pytest

from benchmarks.known_acceptance import __main__ as script
from benchmarks.known_acceptance import calibrations, replays
from benchmarks.known_acceptance.replays import DrawnReplay, KnownReplay
from benchmarks.known_acceptance.texts import ABOUT, TEXTS, Text, drawn, population
from evict_profile.replay.policies import AR, BEST_PAIR, Fixed


def _short(rng):
    return rng.random(), 4.0, 1.0


SHORT = Text("short", _short)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(replays, "PROMPTS", 20)
    monkeypatch.setattr(script, "TEXTS", (SHORT,))
    monkeypatch.setattr(script, "CALIBRATED_ON", 8)
    monkeypatch.setattr(calibrations, "TRUE_DRAWS", 1)


def test_a_trial_of_every_prompt_tells_the_truth():
    """And of ties, that adaptive policies are as fast as the best fixed setting."""
    known, everyone = KnownReplay(SHORT, batch=1, seed=0), np.arange(20)
    told = known.trial(everyone).compare()
    for name in known.lead:
        assert told.of(name).tokens_per_s.value == pytest.approx(known.rate(name))
        ratio = known.rate(name) / known.rate(AR)
        assert told.of(name).over[AR].value == pytest.approx(ratio)
    pair = Fixed("", told.best.depth, told.best.width)
    assert told.best.tokens_per_s == pytest.approx(known.rate(pair))
    tied = DrawnReplay(known, everyone, tied=True).compare()
    for name in known.lead:
        assert tied.of(name).tokens_per_s.value == pytest.approx(known.fastest)
    assert tied.of(BEST_PAIR).tokens_per_s.value < known.fastest


def test_a_prompt_drawn_twice_is_two_prompts():
    trace = drawn(population(SHORT, 3, seed=0), np.array([2, 0, 2]))
    assert [reply.prompt for reply in trace.replies] == [0, 1, 2]
    first, _, again = (trace.part(prompt, 3) for prompt in range(3))
    assert np.array_equal(first.nodes.path_prob, again.nodes.path_prob)
    assert np.array_equal(first.routes, again.routes)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.name)
def test_populations_are_whole(text):
    """Trees no deeper than is drafted, ancestors there, routes for every token."""
    trace = population(text, 4, seed=0)
    assert trace.dense
    assert trace.nodes.depth.max() == ABOUT.depth
    assert np.all(trace.nodes.parent < np.arange(len(trace.nodes)))
    assert len(trace.routes) == len(trace) + len(trace.nodes)


@pytest.mark.parametrize(
    ("study", "numbers"),
    [
        ("batch 4", ("best adaptive x best fixed", "is sure to adapt")),
        ("calibrate", ("Brier, raw", "U(t), batch 4")),
    ],
)
def test_a_study_is_judged_and_kept(study, numbers, tmp_path, capsys):
    out = tmp_path / "acceptance.json"
    asked = ["--trials", "1", "--prompts", "6", "--jobs", "1", "--only", study]
    assert script.main([*asked, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    rows = json.loads(out.read_text())
    assert {row["study"] for row in rows} == {study}
    assert {row["what"] for row in rows} >= set(numbers)
    assert all(number in printed for number in numbers)
    assert all(row["half_width"] >= 0.0 <= row["error"] for row in rows)


def test_a_text_that_there_is_not_is_refused(capsys):
    assert script.main(["--text", "easy"]) == 2
    assert "nothing is called so; there are replay" in capsys.readouterr().err
