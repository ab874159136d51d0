"""Times at which a machine was at another speed, known by the samples in a row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evict_profile.cells import Cell, Sample, cells_of, to_frame
from evict_profile.sweep.speed import IN_A_ROW, Timed, calm, polish

CELLS = [
    Cell("layers", n, u, 64, 1, "balanced") for n in (1, 2, 4, 8) for u in range(2, 14)
]
ROUNDS = 6


def measured(slower, noise, seed=0):
    """Rounds over all cells in random order, each sample so much slower."""
    rng = np.random.default_rng(seed)
    samples = []
    for number in range(ROUNDS):
        for order, place in enumerate(rng.permutation(len(CELLS))):
            cell, at = CELLS[place], len(samples)
            us = (100.0 + 40.0 * cell.union) * slower[at]
            us *= 1.0 + noise * rng.standard_normal()
            samples.append(
                Sample(
                    cell,
                    number,
                    order,
                    seed=at,
                    clock_us=us,
                    at_unix=1e9 + at,
                    wall_us=us,
                )
            )
    return to_frame(samples)


TOTAL = ROUNDS * len(CELLS)
STILL = np.ones(TOTAL)


def test_times_at_half_speed_are_left_out():
    """All but what is at the edges of such times, and next to nothing else."""
    half = np.arange(TOTAL) % 120 >= 90
    kept = calm(measured(1.0 + half, noise=0.02))
    left_out = np.setdiff1d(np.arange(TOTAL), kept["seed"])
    assert half[left_out].mean() > 0.9
    assert np.isin(np.flatnonzero(half), left_out).mean() > 0.9


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.01, 0.08]))
def test_a_machine_that_holds_still_loses_no_sample(seed, noise):
    assert len(calm(measured(STILL, noise, seed))) == TOTAL


def test_a_slow_drift_is_no_other_speed():
    """It is for a gate to refuse."""
    assert len(calm(measured(1.0 + 0.1 * np.arange(TOTAL) / TOTAL, 0.01))) == TOTAL


def test_what_is_slower_most_of_the_time_is_the_usual_speed():
    """Of two speeds, the rarer one is left out."""
    quick = np.arange(TOTAL) % 120 >= 90
    kept = calm(measured(np.where(quick, 1.0, 2.0), noise=0.01))
    assert quick[kept["seed"].to_numpy()].mean() < 0.05


def test_single_samples_tell_nothing_of_their_neighbours():
    """Those of composed cells."""
    frame = measured(1.0 + (np.arange(TOTAL) < 24), 0.0).head(len(CELLS))
    assert len(calm(frame)) == len(CELLS)


def test_samples_that_failed_stay():
    frame = measured(STILL, 0.01)
    frame.loc[3, "status"] = "failed"
    assert cells_of(calm(frame)) == cells_of(frame)


def test_polish_takes_cells_and_times_apart():
    """Without noise exactly, what times add being zero on average."""
    cell, time = np.tile(np.arange(9), 4), np.repeat(np.arange(4), 9)
    log_us = np.linspace(1.0, 3.0, 9)[cell] + np.array([-0.3, 0.1, 0.1, 0.1])[time]
    found = polish(Timed(cell, time, log_us))
    assert found.level == pytest.approx(np.linspace(1.0, 3.0, 9))
    assert found.slower == pytest.approx([-0.3, 0.1, 0.1, 0.1])
    assert found.variance == pytest.approx(np.zeros(4), abs=1e-20)


def test_what_noise_makes_of_a_time_is_as_stated():
    """The spread of what times add, where they add nothing."""
    noise = 0.03 * np.random.default_rng(1).standard_normal(400 * IN_A_ROW)
    cell = np.random.default_rng(2).permutation(np.arange(400 * IN_A_ROW) % 40)
    time = np.arange(400 * IN_A_ROW) // IN_A_ROW
    found = polish(Timed(cell, time, noise))
    # The spread of cells that take part of the noise is a little small.
    assert found.slower.var() == pytest.approx(found.variance.mean(), rel=0.5)
