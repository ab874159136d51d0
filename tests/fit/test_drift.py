"""A machine that changes under a sweep is told by how much, when and where."""

import numpy as np
import pytest

from evict_profile.cells import CELL_FIELDS
from evict_profile.fit.drift import Change, drift_of, in_time, levels_apart
from evict_profile.fit.provenance import openings_of


@pytest.fixture
def still(fitted):
    """Samples of a machine that does not change, in the order measured."""
    return in_time(fitted.frame)


def slowed(still, factor):
    """The same, slower by a factor a sample."""
    return still.assign(clock_us=still["clock_us"] * factor)


@pytest.fixture
def place(still):
    """How far the sweep had come at each sample, 0 to 1."""
    return np.arange(len(still)) / len(still)


def test_a_machine_that_holds_still(still):
    """Half a percent of noise is no change, and there was one session."""
    drift = drift_of(still)
    assert abs(drift.trend.size) < 0.002
    assert drift.stretches and abs(drift.stretches.size) < 0.003
    assert not drift.trend.certain
    assert drift.sessions is None


def test_a_trend_of_five_percent_is_five_percent(still, place):
    """From end to end."""
    drift = drift_of(slowed(still, 1.0 + 0.05 * place))
    assert drift.trend.size == pytest.approx(0.05, abs=0.003)
    assert drift.trend.certain


def test_a_slow_middle_third_is_a_stretch(still, place):
    """It has no trend."""
    middle = (place > 1 / 3) & (place < 2 / 3)
    drift = drift_of(slowed(still, 1.0 + 0.2 * middle))
    assert abs(drift.trend.size) < 0.01
    assert drift.stretches and abs(drift.stretches.size) > 0.15
    assert "of it" in drift.stretches.between


def test_a_step_is_told(still, place):
    """As what it is between stretches."""
    drift = drift_of(slowed(still, 1.0 + 0.05 * (place > 0.5)))
    assert drift.stretches and drift.stretches.size == pytest.approx(0.05, abs=0.004)


def test_short_blocks_of_half_speed_are_noise(still, place):
    """Eleven of twenty forwards take twice as long for a quarter of the run."""
    blocks = (np.arange(len(still)) // 4 % 20 < 11) & (place < 0.25)
    drift = drift_of(slowed(still, 1.0 + blocks))
    assert abs(drift.trend.size) < 0.01
    assert drift.stretches and abs(drift.stretches.size) < 0.01


def test_a_reference_takes_the_machine_out(still, place):
    """What slows the reference as well is no change of latencies."""
    factor = 1.0 + 0.3 * place
    paired = slowed(still, factor).assign(reference_us=2e4 * factor)
    assert abs(drift_of(paired).trend.size) < 0.002


def in_two_shards(still, fitted):
    """Every second cell in another shard, the anchor in turns."""
    cell = still.groupby(list(CELL_FIELDS))
    of_anchor = (still[list(CELL_FIELDS)] == fitted.anchor.__dict__).all(axis=1)
    second = np.where(of_anchor, cell.cumcount() % 2, cell.ngroup() % 2) == 1
    return still.assign(session=np.where(second, "2/2 #1", "1/2 #1"))


def test_the_anchor_compares_shards(still, fitted):
    """No other cell is in both."""
    shards = in_two_shards(still, fitted)
    assert shards.groupby(list(CELL_FIELDS))["session"].nunique().max() == 2
    same = drift_of(shards)
    assert same.sessions and not same.sessions.certain
    factor = np.where(shards["session"] == "2/2 #1", 1.1, 1.0)
    other = drift_of(slowed(shards, factor))
    assert other.sessions and other.sessions.certain
    assert other.sessions.size == pytest.approx(0.1, abs=0.02)
    assert str(other.sessions).endswith("from session 1/2 #1 to 2/2 #1")


def test_shards_without_a_common_cell_cannot_be_compared(still, fitted):
    shards = in_two_shards(still, fitted)
    of_anchor = (shards[list(CELL_FIELDS)] == fitted.anchor.__dict__).all(axis=1)
    found = drift_of(shards[~of_anchor]).sessions
    assert found and not found.known
    assert str(found) == (
        "unknown from session 1/2 #1 to 2/2 #1, for want of a cell measured both times"
    )


def in_six_openings(still, log_us):
    """Each measures all cells; they differ as a whole."""
    sixth = np.arange(len(still)) * 6 // len(still)
    return slowed(still.assign(session=sixth.astype(str)), np.exp(log_us)[sixth])


def test_openings_that_all_cells_were_in_set_none_apart(still):
    """A trend through them is as certain as their scatter about it allows."""
    apart = 0.03 * np.array([-1.0, 1.2, -0.8, 0.9, -1.1, 1.3])
    drift = drift_of(in_six_openings(still, apart))
    assert drift.sessions and abs(drift.sessions.size) < 0.03
    assert not drift.trend.certain
    assert drift.trend.error > 0.03
    variance = (0.00236**2 + 5.0 * apart.var(ddof=1)) / 6.0
    assert drift.reach == pytest.approx(2.447 * (variance / 6.0) ** 0.5, rel=0.1)
    steady = drift_of(in_six_openings(still, np.linspace(-0.03, 0.03, 6)))
    assert steady.trend.certain
    assert steady.trend.size == pytest.approx(0.07, abs=0.01)


def test_openings_that_measured_every_cell_compare_none_across(still):
    """So nothing is said of two of them."""
    by_round = still.assign(session=still["round"].astype(str))
    assert drift_of(by_round).sessions is None


def test_what_may_be_noise_is_called_no_change():
    """With its size and two standard errors."""
    size, between = 0.025, "over the run"
    unsure, sure = (str(Change(size, error, between)) for error in (0.0955, 0.005))
    assert unsure == "no change shown over the run (+2.5% +- 19.1%)"
    assert sure == "+2.5% +- 1.0% over the run"


def test_prices_carry_what_the_gate_judges(still):
    """Also where a slow opening is of another speed, and left out of the fit."""
    log_us = 0.2 * (np.arange(6) // 2 == 1)
    frame = in_six_openings(still, log_us)
    assert openings_of(frame, "cpu").half_width == drift_of(frame).reach > 0.05


def test_a_batch_of_another_day_is_apart(still, fitted):
    """Beside the anchor alone; interleaved, no level is."""
    assert levels_apart(still, fitted.anchor) == []
    later = still["at_unix"] + 1e5 * (still["batch"] == 2)
    apart = levels_apart(still.assign(at_unix=later), fitted.anchor)
    assert apart == ["batch 1", "batch 2"]
