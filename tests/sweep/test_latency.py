"""One fit of cells and times: slow blocks, drift, sessions."""

import numpy as np
import pandas as pd
import pytest

from evict_profile.cells import CELL_FIELDS, UNTIMED, Cell, Sample, to_frame
from evict_profile.records import replace
from evict_profile.sweep.latency import (
    BLOCK_SAMPLES,
    Change,
    Samples,
)
from evict_profile.sweep.two_way import two_way

UNEVEN = 0.0, 0.04, 0.02, 0.07
"""Log latencies of four sessions, which rise as those of a busy machine may."""


@pytest.fixture
def still(fitted):
    """Samples of a machine that does not change, in the order measured."""
    return fitted.samples.in_time.reset_index(drop=True)


def slowed(still, factor):
    return still.assign(clock_us=still["clock_us"] * factor)


@pytest.fixture
def place(still):
    """How far the sweep had come at each sample, 0 to 1."""
    return np.arange(len(still)) / len(still)


def test_a_machine_that_holds_still(still):
    """Half a percent of noise is no change, and there was one session."""
    drift = Samples(still).drift
    assert abs(drift.trend.size) < 0.002
    assert drift.stretches and abs(drift.stretches.size) < 0.003
    assert not drift.trend.least


def test_a_trend_of_five_percent_is_five_percent(still, place):
    drift = Samples(slowed(still, 1.0 + 0.05 * place)).drift
    assert drift.trend.size == pytest.approx(0.05, abs=0.003)
    assert drift.trend.least


def test_a_slow_middle_third_is_a_change(still, place):
    """It has no trend, and the fit leaves out what it left of its neighbours."""
    middle = (place > 1 / 3) & (place < 2 / 3)
    drift = Samples(slowed(still, 1.0 + 0.2 * middle)).drift
    assert abs(drift.trend.size) < 0.01
    assert drift.stretches and abs(drift.stretches.size) > 0.15
    assert "of it" in drift.stretches.between


def test_samples_stored_in_another_order_say_the_same(still, place):
    """The order in time is that of `at_unix`."""
    drifts = slowed(still, 1.0 + 0.05 * place)
    assert Samples(drifts.sort_values("seed")).drift == Samples(drifts).drift


def test_a_step_is_told(still, place):
    drift = Samples(slowed(still, 1.0 + 0.05 * (place > 0.5))).drift
    assert drift.stretches and drift.stretches.size == pytest.approx(0.05, abs=0.004)


def test_short_blocks_of_half_speed_are_noise(still, place):
    """Eleven of twenty forwards take twice as long for a quarter of the run."""
    blocks = (np.arange(len(still)) // 4 % 20 < 11) & (place < 0.25)
    drift = Samples(slowed(still, 1.0 + blocks)).drift
    assert abs(drift.trend.size) < 0.01
    assert drift.stretches and abs(drift.stretches.size) < 0.01


def test_a_reference_takes_the_machine_out(still, place):
    """What slows the reference as well is no change of latencies."""
    factor = 1.0 + 0.3 * place
    paired = slowed(still, factor).assign(reference_us=2e4 * factor)
    assert abs(Samples(paired).drift.trend.size) < 0.002


def in_six_openings(still, log_us):
    sixth = np.arange(len(still)) * 6 // len(still)
    return slowed(still.assign(session=sixth.astype(str)), np.exp(log_us)[sixth])


def test_a_trend_through_sessions_is_as_certain_as_their_scatter_allows(still):
    apart = 0.03 * np.array([-1.0, 1.2, -0.8, 0.9, -1.1, 1.3])
    drift = Samples(in_six_openings(still, apart)).drift
    assert not drift.trend.least
    assert drift.trend.error > 0.03
    variance = (2.0 * 0.007**2 + 5.0 * apart.var(ddof=1)) / 7.0
    assert drift.half_width == pytest.approx(2.365 * (variance / 6.0) ** 0.5, rel=0.1)
    steady = Samples(in_six_openings(still, np.linspace(-0.03, 0.03, 6))).drift
    assert steady.trend.least
    assert steady.trend.size == pytest.approx(0.07, abs=0.01)


def test_a_step_between_sessions_is_told(still):
    """It is no line in time; one that few sessions show is less certain."""
    step = np.array([0.0, 0.0, 0.0, 0.05, 0.05, 0.05])
    trend = Samples(in_six_openings(still, step)).drift.trend
    assert trend.size == pytest.approx(0.05, abs=0.004)
    assert trend.between == "after session 2"
    assert trend.least > 0.04
    quarter = np.arange(len(still)) * 4 // len(still)
    for levels, certain in (((0.0, 0.0, 0.05, 0.05), True), (UNEVEN, False)):
        four = slowed(
            still.assign(session=quarter.astype(str)), np.exp(levels)[quarter]
        )
        assert bool(Samples(four).drift.trend.least) == certain


@pytest.mark.parametrize(("slow", "judged"), [([2], False), ([2, 3], True)])
def test_one_session_of_another_speed_is_left_out(still, slow, judged):
    """Its reference may have changed alone; two are a change of the machine."""
    log_us = 0.3 * np.isin(np.arange(6), slow)
    assert (Samples(in_six_openings(still, log_us)).drift.half_width > 0.05) == judged
    two = still.assign(session=(np.arange(len(still)) * 2 // len(still)).astype(str))
    assert (
        Samples(slowed(two, 1.0 + 0.3 * (two["session"] == "1"))).drift.half_width
        > 0.05
    )


def test_what_may_be_noise_is_called_no_change():
    size, between = 0.025, "over the run"
    unsure, sure = (str(Change(size, error, between)) for error in (0.0955, 0.005))
    assert unsure == "no change shown over the run (+2.5% +- 19.1%)"
    assert sure == "+2.5% +- 1.0% over the run"


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
                    reading=replace(UNTIMED, clock_us=us, at_unix=1e9 + at),
                )
            )
    return to_frame(samples)


def kept_of(frame):
    """Samples that a fit is made of."""
    samples = Samples(frame)
    return samples.in_time[~samples.slow]


TOTAL = ROUNDS * len(CELLS)
STILL = np.ones(TOTAL)


def test_times_at_half_speed_are_left_out():
    """All but what is at the edges of such times, and next to nothing else."""
    half = np.arange(TOTAL) % 120 >= 90
    kept = kept_of(measured(1.0 + half, noise=0.02))
    left_out = np.setdiff1d(np.arange(TOTAL), kept["seed"])
    assert half[left_out].mean() > 0.9
    assert np.isin(np.flatnonzero(half), left_out).mean() > 0.9


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.08])
def test_a_machine_that_holds_still_loses_no_sample(noise):
    """None of 300 seeds lost one; chance makes a block slow less often than that."""
    kept = [len(kept_of(measured(STILL, noise, seed))) for seed in range(10)]
    assert kept == [TOTAL] * 10


def test_a_stretch_little_known_hides_no_change_of_another():
    """The third fifth keeps few samples; the last is 25 % slower than the others."""
    at = np.arange(TOTAL)
    half = (at * 5 // TOTAL == 2) & (at // BLOCK_SAMPLES % 4 > 0)
    slower = (1.0 + half) * np.where(at * 5 // TOTAL == 4, 1.25, 1.0)
    drift = Samples(measured(slower, noise=0.14, seed=4)).drift
    assert drift.stretches and drift.stretches.least > 0.1


def test_a_slow_drift_is_no_other_speed():
    assert len(kept_of(measured(1.0 + 0.1 * np.arange(TOTAL) / TOTAL, 0.01))) == TOTAL


def test_what_is_slower_most_of_the_time_is_the_usual_speed():
    quick = np.arange(TOTAL) % 120 >= 90
    kept = kept_of(measured(np.where(quick, 1.0, 2.0), noise=0.01))
    assert quick[kept["seed"].to_numpy()].mean() < 0.05


def test_single_samples_tell_nothing_of_their_neighbours():
    frame = measured(1.0 + (np.arange(TOTAL) < 24), 0.0).head(len(CELLS))
    assert len(kept_of(frame)) == len(CELLS)


def samples_of(cell, log_us):
    columns = dict.fromkeys(CELL_FIELDS, 0)
    return pd.DataFrame(
        {**columns, "width": cell, "latency_us": np.exp(log_us)}, index=range(len(cell))
    )


def test_cells_and_blocks_are_taken_apart():
    cell, block = np.tile(np.arange(9), 4), np.repeat(np.arange(4), 9)
    log_us = np.linspace(1.0, 3.0, 9)[cell] + np.array([0.0, 0.4, 0.1, 0.1])[block]
    found = two_way(samples_of(cell, log_us), block)
    assert found.level == pytest.approx(np.linspace(1.0, 3.0, 9), abs=1e-6)
    assert found.effect == pytest.approx([0.0, 0.4, 0.1, 0.1], abs=1e-6)


def test_what_noise_makes_of_a_block_is_as_stated():
    """The spread of what blocks add, where they add nothing."""
    noise = 0.03 * np.random.default_rng(1).standard_normal(400 * BLOCK_SAMPLES)
    cell = np.random.default_rng(2).permutation(np.arange(400 * BLOCK_SAMPLES) % 40)
    block = np.arange(400 * BLOCK_SAMPLES) // BLOCK_SAMPLES
    found = two_way(samples_of(cell, noise), block)
    # A block less the first has the noise of both.
    stated = np.diag(found.covariance)[1:].mean() / 2.0
    assert found.effect.var() == pytest.approx(stated, rel=0.3)
