"""The judge of intervals: its machines cost what they say, and it judges by that."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest

from benchmarks.known_truths.__main__ import main
from benchmarks.known_truths.rechecks import CHANGES, Job
from benchmarks.known_truths.rechecks import judged as judge_rechecks
from benchmarks.known_truths.rechecks import show as show_rechecks
from benchmarks.known_truths.worlds import (
    WORLDS,
    Disturbance,
    Machine,
    in_class,
    random_places,
    tiles,
)
from evict_profile.cells import Cell

LIMITS = {
    "width": (1, 64),
    "union": (8, 128),
    "context": (512, 4096),
    "batch": (1, 4),
    "tokens": (1, 64),
}
RISING = [world for world in WORLDS if world.cost is not tiles]
"""With tiles, more experts have fewer rows each, and may need fewer tiles."""
CELL = Cell("layers", 8, 32, 512, 1, "balanced")


@pytest.mark.parametrize("world", RISING, ids=lambda world: world.name)
def test_more_experts_never_cost_less(world):
    places = random_places(np.random.default_rng(0), LIMITS, 200)
    tokens, union, context, batch = places.T
    less = world.cost(tokens, union, context, batch)
    assert less.min() > 0.0
    assert np.all(world.cost(tokens, union + 1.0, context, batch) >= less)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_another_process_finds_a_world(world):
    assert pickle.loads(pickle.dumps(world)) == world


def test_places_lie_inside_the_domain():
    tokens, union, _, batch = random_places(np.random.default_rng(0), LIMITS, 200).T
    assert np.all(union <= 8 * tokens)
    assert tokens.max() <= 64
    assert set(batch) <= {1.0, 2.0, 3.0, 4.0}


@pytest.mark.parametrize("tail", ["normal", "heavy", "floor"])
def test_noise_has_the_truth_as_its_median(tail):
    machine = Machine(in_class, Disturbance(0.05, tail), seed=0)
    samples = [machine.sample_us(CELL, 32.0, 0.5)[0] for _ in range(4000)]
    true = float(in_class(*map(np.array, (8.0, 32.0, 512.0, 1.0))))
    assert np.mean(np.array(samples) > true) == pytest.approx(0.5, abs=0.03)


def test_the_reference_slows_down_with_the_machine():
    told = Disturbance(0.001, half=0.5, reference=True)
    machine = Machine(in_class, told, seed=0)
    clock, reference = np.array(
        [machine.sample_us(CELL, 32.0, 0.5) for _ in range(400)]
    ).T
    assert clock.max() > 1.9 * clock.min()
    assert np.ptp(clock / reference) < 0.05 * np.mean(clock / reference)


def test_one_sweep_is_judged(tmp_path, capsys):
    """A machine in the fitted class is covered well, and the table says how well."""
    out = tmp_path / "truths.json"
    asked = ["--sweeps", "1", "--only", "in class, 1", "--jobs", "1"]
    assert main([*asked, "--out", str(out)]) == 0
    assert "in class, 1 %" in capsys.readouterr().out
    (judged,) = json.loads(out.read_text())
    assert judged["between_p90"] < 0.01
    assert 0.0 < judged["half_width"] < 0.01
    assert judged["said_p90"] < 0.03
    _, half_width, error = judged["marginal"]["expert in each layer"]
    assert 0.0 < max(error, half_width) < 0.01


def test_gates_are_judged(capsys):
    """A runner that answers from memory is refused by the gate that is for it."""
    asked = ["--gates", "--sweeps", "1", "--only", "1 %: first", "--jobs", "1"]
    assert main(asked) == 0
    *_, row = capsys.readouterr().out.splitlines()
    assert row.split()[-4:] == ["100.0", "0.0", "0.0", "100.0"]


def test_a_machine_is_slow_for_a_time():
    machine = Machine(in_class, Disturbance(1e-6, slow=(0.2, 0.5, 0.6)), seed=0)
    times = [machine.sample_us(CELL, 32.0, done)[0] for done in (0.4, 0.5, 0.6)]
    assert np.array(times) / times[0] == pytest.approx([1.0, 1.2, 1.0], rel=1e-4)


def test_a_world_that_there_is_not_is_refused(capsys):
    assert main(["--only", "perfect"]) == 2
    assert "--only perfect: no world's name holds it" in capsys.readouterr().err


def test_rechecks_of_known_changes_are_judged(capsys):
    """At 1 % noise nothing is the same, and 10 % has drifted."""
    rows = pd.DataFrame(judge_rechecks(Job("1 % noise", 6, seed=0)))
    verdict = rows.set_index("change")["verdict"]
    assert (verdict["nothing"], verdict["+10 %"]) == ("same", "drifted")
    assert not rows[rows["verdict"] == "same"]["beyond"].any()
    show_rechecks(rows)
    shown = capsys.readouterr().out
    assert "sessions behind the table: 6" in shown
    assert "100/0/0" in shown


def test_a_dearer_expert_moves_the_cells_that_have_many():
    """With the mean as before, the cells of few experts are cheaper."""
    small, large = (Cell("layers", 32, u, 512, 1, "balanced") for u in (8, 128))
    few, many = CHANGES["U +10 %, mean as before"].ratio([small, large])
    assert few < 1.0 < many
    assert few * many == pytest.approx(1.0)
    assert 1.0 < CHANGES["U +10 %"].ratio([large])[0] < 1.1
