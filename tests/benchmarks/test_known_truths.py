"""The judge of intervals: its machines cost what they say, and it judges by that."""

import json

import numpy as np
import pandas as pd
import pytest

from benchmarks.known_truths import gates, intervals, rechecks
from benchmarks.known_truths.__main__ import main
from benchmarks.known_truths.intervals import random_places
from benchmarks.known_truths.worlds import WORLDS, Disturbance, Machine, Place, in_class
from evict_profile.cells import Cell

LEVELS = {"width": (1, 64), "union": (8, 128), "context": (512, 4096)}
LIMITS = LEVELS | {"batch": (1, 4), "tokens": (1, 64)}
RISING = [world for world in WORLDS if world.name != "tiles of 16"]
"""With tiles, more experts have fewer rows each, and may need fewer tiles."""
CELL = Cell("layers", 8, 32, 512, 1, "balanced")


def clocks(disturbance, progress):
    """Clock and reference of a forward at each progress, float64 [2, forwards]."""
    machine = Machine(in_class, disturbance, seed=0)
    return np.array([machine.sample_us(CELL, 32.0, done) for done in progress]).T


@pytest.mark.parametrize("world", RISING, ids=lambda world: world.name)
def test_more_experts_never_cost_less(world):
    places = random_places(np.random.default_rng(0), LIMITS, 200)
    tokens, union, _, batch = places.T
    assert np.all(union <= 8 * tokens) and tokens.max() <= 64 and batch.max() <= 4
    less = Place(*places.T)
    assert world.cost(less).min() > 0.0
    assert np.all(world.cost(less._replace(union=union + 1.0)) >= world.cost(less))


@pytest.mark.parametrize("tail", ["normal", "heavy", "floor"])
def test_noise_has_the_truth_as_its_median(tail):
    samples, _ = clocks(Disturbance(0.05, tail), [0.5] * 4000)
    true = in_class(Place(*map(np.array, (8.0, 32.0, 512.0, 1.0))))
    assert np.mean(samples > true) == pytest.approx(0.5, abs=0.03)


def test_the_reference_slows_down_with_the_machine():
    clock, reference = clocks(Disturbance(0.001, half=0.5, reference=True), [0.5] * 400)
    assert clock.max() > 1.9 * clock.min()
    assert np.ptp(clock / reference) < 0.05 * np.mean(clock / reference)


def test_a_machine_is_slow_for_a_time():
    times, _ = clocks(Disturbance(1e-6, slow=(0.2, 0.5, 0.6)), [0.4, 0.5, 0.6])
    assert times / times[0] == pytest.approx([1.0, 1.2, 1.0], rel=1e-4)


def test_one_sweep_is_judged(tmp_path, capsys):
    """A machine in the fitted class is covered well, and the table says how well."""
    out = tmp_path / "truths.json"
    asked = ["intervals", "--sweeps", "1", "--only", "in class, 1", "--jobs", "1"]
    assert main([*asked, "--out", str(out)]) == 0
    assert "in class, 1 %" in capsys.readouterr().out
    (judged,) = json.loads(out.read_text())
    assert judged["between_p90"] < 0.01
    assert 0.0 < judged["half_width"] < 0.01
    assert judged["said_p90"] < 0.03


def test_gates_are_judged(capsys):
    """A runner that answers from memory is refused by the gate that is for it."""
    asked = ["gates", "--sweeps", "1", "--only", "1 %: first", "--jobs", "1"]
    assert main(asked) == 0
    *_, row = capsys.readouterr().out.splitlines()
    assert row.split()[-4:] == ["100.0", "0.0", "0.0", "100.0"]


def test_rechecks_are_judged(capsys):
    asked = ["rechecks", "--sweeps", "1", "--only", "1 %, opened", "--jobs", "1"]
    assert main(asked) == 0
    *_, row = capsys.readouterr().out.splitlines()
    assert row.split()[-5] == "0%" and row.split()[-3:] == ["100%"] * 3


def test_a_recheck_that_finds_nothing_or_too_much_is_a_missed_promise():
    rows = [{"world": "w", "change": c, "verdict": "drifted"} for c in (0.0, 0.1)]
    [called] = rechecks.misses(pd.DataFrame(rows))
    assert called == "w: 100% of unchanged machines are called drifted"
    [found] = rechecks.misses(pd.DataFrame(rows).assign(verdict="same"))
    assert found == "w: 0% of changes by 10 % are found"


KEPT = {"in_class": True, "stairs": 0.95, "half_width": 1.0, "needed": 0.6}
GATES = ("bad", "copies", "drift", "A/A floor")


@pytest.mark.parametrize(
    ("study", "good", "bad"),
    [
        (intervals, KEPT, {"stairs": 0.9, "needed": 0.2}),
        (gates, dict.fromkeys(GATES, False), {"drift": True}),
    ],
)
def test_a_missed_promise_is_named(study, good, bad):
    rows = [good, good]
    rows = [{"world": "w", **row} for row in rows]
    assert not list(study.misses(pd.DataFrame(rows)))
    rows[0] |= bad
    assert len(list(study.misses(pd.DataFrame(rows)))) == (2 if len(bad) > 1 else 1)


def test_a_world_that_there_is_not_is_refused(capsys):
    assert main(["gates", "--only", "perfect"]) == 2
    assert "--only perfect: no world's name holds it" in capsys.readouterr().err
