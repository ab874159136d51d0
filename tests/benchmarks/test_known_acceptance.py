"""The judge of replay's and calibration's intervals judges by its populations."""

import json

import numpy as np
import pandas as pd
import pytest

from benchmarks.known_acceptance import __main__ as script
from benchmarks.known_acceptance import populations
from benchmarks.known_acceptance.__main__ import misses
from benchmarks.known_acceptance.populations import ABOUT, TEXTS, drawn, population
from benchmarks.known_acceptance.replays import SURE, WRONG, DrawnReplay, KnownReplay
from evict_profile.replay.policies import AR, BEST_PAIR, Fixed

SHORT = {"short": lambda rng: (rng.random(), 4.0, 1.0)}


@pytest.fixture
def few(monkeypatch):
    for module in (script, populations):
        monkeypatch.setattr(module, "TEXTS", SHORT)
    monkeypatch.setattr(script, "POPULATIONS", {"batch 4": 20, "calibrate": 8})
    monkeypatch.setattr(script, "TRUE_DRAWS", 1)


def test_a_trial_of_every_prompt_finds_the_truth(few):
    """And of ties, that adaptive policies are as fast as the best fixed setting."""
    known, everyone = KnownReplay("short", 1, 20, seed=0), np.arange(20)
    found = known.trial(everyone).compare()
    for name in known.lead:
        assert found.of(name).tokens_per_s.value == pytest.approx(known.rate(name))
        ratio = known.rate(name) / known.rate(AR)
        assert found.of(name).over[AR].value == pytest.approx(ratio)
    pair = Fixed("", found.best.depth, found.best.width)
    assert found.best.tokens_per_s == pytest.approx(known.rate(pair))
    tied = DrawnReplay(known, everyone, tied=True).compare()
    for name in known.lead:
        assert tied.of(name).tokens_per_s.value == pytest.approx(known.fastest)
    assert tied.of(BEST_PAIR).tokens_per_s.value < known.fastest


def test_a_prompt_drawn_twice_is_two_prompts(few):
    trace = drawn(population("short", 3, seed=0), np.array([2, 0, 2]))
    assert [reply.prompt for reply in trace.replies] == [0, 1, 2]
    first, _, again = (trace.part(prompt, 3) for prompt in range(3))
    assert np.array_equal(first.nodes.path_prob, again.nodes.path_prob)
    assert np.array_equal(first.routes, again.routes)


@pytest.mark.parametrize("text", TEXTS)
def test_populations_are_whole(text):
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
def test_a_study_is_judged_and_kept(few, study, numbers, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(script, "LEAST", 0.0)
    out = tmp_path / "acceptance.json"
    asked = ["--trials", "1", "--prompts", "6", "--only", study, "--out", str(out)]
    assert script.main(asked) == 0
    printed = capsys.readouterr().out
    rows = json.loads(out.read_text())
    assert {row["study"] for row in rows} == {study}
    assert {row["what"] for row in rows} >= set(numbers)
    assert all(number in printed for number in numbers)
    assert all(row["half_width"] >= 0.0 <= row["error"] for row in rows)


@pytest.mark.parametrize(
    ("inside", "wrong", "missed"),
    [(0.9, 0.0, False), (0.8, 0.0, True), (0.9, 0.1, True)],
)
def test_intervals_that_hold_too_little_are_a_miss(inside, wrong, missed):
    """Verdicts that are sure, and not wrong, count as neither."""
    shares = {"tokens/s": inside, SURE: 0.5, WRONG: wrong}
    rows = [
        {"study": "replay", "what": what, "inside": trial < 100 * share}
        for what, share in shares.items()
        for trial in range(100)
    ]
    assert misses(pd.DataFrame(rows)) is missed
