"""What is measured next, and when a cell has been measured enough."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evict_profile.cells import Cell, Sample, measured, to_frame
from evict_profile.config import GridSpec, StopSpec, SweepSpec, load_model
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.plan import (
    NORMAL_95,
    GridPlan,
    round_order,
    sample_seed,
    samples_needed,
    spread_cells,
)
from tests.factories import timed

AXES = GridSpec(width=(1, 2, 4, 8), union=4, context=(64, 128), batch=(1, 2))
GRID = make_grid(SweepSpec(name="given", grid=AXES), load_model("tiny"))
STOP = StopSpec(relative_half_width=0.02, min_samples=6, max_samples=12)
PLAN = GridPlan(GRID, STOP)
DONE = [100.0] * 6


def still_open(latencies):
    return list(PLAN.samples_due(timed(latencies)))


seeds = st.integers(0, 2**31)
subsets = st.sets(st.sampled_from(GRID.cells), min_size=1).map(list)


@given(subsets, seeds, st.integers(1, 99), st.randoms())
def test_a_round_is_a_permutation_with_the_anchor(cells, seed, number, rng):
    """Every open cell once, and the anchor, in an order of seed and round alone."""
    order = round_order(cells, GRID.anchor, seed, number)
    assert sorted(order) == sorted({*cells, GRID.anchor})
    rng.shuffle(cells)
    assert round_order(cells, GRID.anchor, seed, number) == order


def test_rounds_differ_in_order():
    orders = {
        tuple(round_order(GRID.cells, GRID.anchor, seed, number))
        for seed in range(3)
        for number in range(1, 4)
    }
    assert len(orders) == 9


@given(st.sampled_from(GRID.cells), seeds, st.integers(1, 99), st.integers(0, 9))
def test_a_seed_belongs_to_seed_round_cell_and_repeat(cell, seed, number, repeat):
    """It is 31 bits wide, moves with each of its causes, and is the same for ever."""
    own = sample_seed(seed, number, cell, repeat)
    other = next(c for c in GRID.cells if c != cell)
    assert 0 <= own < 2**31
    assert own not in {
        sample_seed(seed + 1, number, cell, repeat),
        sample_seed(seed, number + 1, cell, repeat),
        sample_seed(seed, number, other, repeat),
        sample_seed(seed, number, cell, repeat + 1),
    }
    known = Cell("layers", 4, 8, 64, 1, "balanced")
    assert sample_seed(0, 1, known, 0) == 1582982594


def test_grid_plan_closes_what_is_known_or_failed():
    known, failed, begun = GRID.cells[:3]
    assert still_open({}) == list(GRID.cells)
    oom = to_frame([Sample(failed, 1, 0, 0, status="oom")])
    frame = pd.concat([timed({known: DONE, begun: [100.0], failed: DONE[:1]}), oom])
    assert list(PLAN.samples_due(frame)) == [begun, *GRID.cells[3:]]


@given(st.integers(4, 60))
def test_spread_cells_are_distinct_and_forced(count):
    """No cell twice; natural routing cannot be placed, so it is left for later."""
    chosen = spread_cells(GRID, count)
    assert len(set(chosen)) == len(chosen)
    assert all(c.union > 0 for c in chosen if c.part == "layers")


RULE = StopSpec(relative_half_width=0.02, min_samples=6, max_samples=30)


@pytest.mark.parametrize(
    ("count", "half_width", "done"),
    [
        (5, 0.0, False),
        (6, 0.02, True),
        (6, 0.021, False),
        (29, 0.021, False),
        (30, 0.021, True),
    ],
)
def test_a_cell_is_done_when_precise_or_at_the_most_samples(count, half_width, done):
    assert (samples_needed(count, half_width, RULE) == 0) is done


def test_twice_as_wide_an_interval_needs_four_times_the_samples():
    assert samples_needed(6, 0.04, RULE) == 4 * 6 - 6


def drawn(noise, count, seed=3):
    rng = np.random.default_rng(seed)
    draws = 100.0 * np.exp(noise * rng.standard_normal((len(GRID.cells), count)))
    return dict(zip(GRID.cells, draws.tolist(), strict=True))


def test_a_cell_whose_samples_lie_close_by_luck_goes_on():
    """How often it is measured does not hang on its own few samples."""
    history = drawn(0.05, 6)
    history[GRID.cells[0]] = DONE
    assert still_open(history) == list(GRID.cells)


def test_a_disturbed_cell_goes_on_alone():
    history = drawn(0.01, 6)
    history[GRID.cells[0]][:3] = [200.0] * 3
    assert still_open(history) == [GRID.cells[0]]


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_the_rule_has_no_unit(factor):
    history = drawn(0.02, 7)
    scaled = {c: [factor * v for v in values] for c, values in history.items()}
    assert still_open(scaled) == still_open(history)


@settings(max_examples=20)
@given(st.integers(1, 9), st.floats(0.001, 0.2))
def test_only_closed_cells_need_nothing(count, noise):
    """The guess of what is left is zero exactly when the rule is met."""
    history, cells = drawn(noise, count), list(GRID.cells)
    due = PLAN.samples_due(timed(history))
    left = sum(due.values())
    assert (left == 0) == (due == {})
    assert left <= len(cells) * (STOP.max_samples - count)


def test_the_intervals_of_cells_that_stopped_hold_their_medians():
    """By a cell's own samples, 80 to 91 of 100 did where some had stopped early."""
    truths: list[bool] = []
    for seed in range(6):
        whole = drawn(0.025, STOP.max_samples, seed)
        history = {c: values[: STOP.min_samples] for c, values in whole.items()}
        while still := still_open(history):
            history |= {c: whole[c][: len(history[c]) + 1] for c in still}
        cells = measured(timed(history))
        inside = (cells["latency_us"] / 100.0 - 1.0).abs() <= NORMAL_95 * cells["error"]
        counts = cells["samples_us"].map(len)
        truths += inside[counts < STOP.max_samples].tolist()
    assert len(truths) > 100
    assert 0.91 < np.mean(truths) < 0.99
