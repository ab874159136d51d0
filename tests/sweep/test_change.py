"""Whether a machine changed, told from all cells together."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtrit

from evict_profile.cells import Cell
from evict_profile.sweep.change import change_between, levels_of

SHARE = np.linspace(0.2, 0.9, 30)
"""Of each cell's cost, what follows U."""

ROUNDS = 6
CELLS = [Cell("layers", 1 + i, 4, 64, 1, "balanced") for i in range(30)]


def samples(cell, session, log_us):
    fields = {"part": "layers", "union": 4, "context": 64, "batch": 1}
    own = {"width": 1 + cell, "latency_us": np.exp(log_us), "session": session}
    return pd.DataFrame({**own, **fields, "split": "balanced"})


@dataclass(frozen=True)
class Machine:
    """Draws samples of 30 cells, all of them in each round."""

    noise: float = 0.03
    between: float = 0.01
    outliers: float = 0.0

    def levels(self, seed, sessions=6, log_ratio=0.0 * SHARE):
        """Levels of the cells, of which each is changed by its ratio."""
        rng = np.random.default_rng(seed)
        log_us = 7.0 + np.arange(30.0) / 9.0 + log_ratio + np.zeros((ROUNDS, 30))
        log_us += self.noise * rng.standard_normal(log_us.shape)
        log_us += np.log(2.0) * (rng.random(log_us.shape) < self.outliers)
        session = np.arange(ROUNDS) % sessions
        log_us += self.between * rng.standard_normal(sessions)[session][:, None]
        cell, session = np.tile(np.arange(30), ROUNDS), np.repeat(session, 30)
        return levels_of(samples(cell, session, log_us.ravel()), CELLS)

    def change(self, seed, log_ratio=0.0, sessions=6):
        before = unchanged(self, 2 * seed, sessions)
        now = self.levels(2 * seed + 1, log_ratio=log_ratio + 0.0 * SHARE)
        return change_between(before, now, SHARE)

    def verdicts(self, log_ratio=0.0, sessions=6, times=50):
        changes = (self.change(seed, log_ratio, sessions) for seed in range(times))
        return [change.verdict for change in changes]


@cache
def unchanged(machine, seed, sessions):
    """Levels that many tests compare with."""
    return machine.levels(seed, sessions)


def test_an_unchanged_machine_rarely_drifted():
    """At most 2 in 100 by design; sessions differ by 1 %."""
    verdicts = Machine().verdicts()
    assert verdicts.count("drifted") <= 2
    assert verdicts.count("same") >= 45


def test_three_per_cent_at_three_per_cent_noise_are_found():
    """In 92 of 100 by design, slower or faster; sessions differ by 1 %."""
    for change in (np.log(1.03), -np.log(1.03)):
        assert Machine().verdicts(change).count("drifted") >= 42


def test_same_within_holds_the_change():
    """Of a machine that is 2 % slower, 95 of 100 bounds are above."""
    changes = [Machine().change(seed, np.log(1.02)) for seed in range(50)]
    assert np.mean([change.within > 0.02 for change in changes]) > 0.9


def test_same_within_is_the_upper_end_of_95_percent():
    """Of the mean alone where no cell shows the slope; 2 + 5 + 5 degrees of freedom."""
    before, now = (Machine().levels(seed) for seed in (0, 1))
    change = change_between(before, now, np.full(30, 0.5))
    above = stdtrit(12, 0.95) * change.mean.error
    assert change.within == pytest.approx(np.expm1(abs(change.mean.value) + above))


def test_noise_hides_and_is_not_taken_for_sameness():
    """At 15 % noise nothing is claimed of a machine that is 4 % slower."""
    noisy = Machine(noise=0.15)
    assert noisy.verdicts(np.log(1.04), times=40).count("same") <= 1


def test_a_change_of_the_slope_is_found_where_the_mean_is_as_before():
    """An expert costs 10 % more, all else as much less."""
    ratio = np.log(1.0 + 0.1 * SHARE)
    changes = [Machine().change(seed, ratio - ratio.mean()) for seed in range(40)]
    assert sum(change.slope.is_shown for change in changes) >= 34
    assert sum(change.mean.is_shown for change in changes) <= 3
    drifted = next(change for change in changes if not change.mean.is_shown)
    assert str(drifted).startswith("drifted, the cost of an expert by +")


def test_a_table_of_one_session_promises_less():
    """Its own session alone may differ as those of the recheck; what can be found is
    said."""
    one, six = (Machine().change(0, sessions=k) for k in (1, 6))
    assert one.mean.error > 1.2 * six.mean.error
    assert one.mean.detectable > 0.035 > six.mean.detectable
    assert Machine().verdicts(sessions=1, times=100).count("drifted") <= 5


def test_one_session_rarely_alarms_where_sessions_differ_by_two_per_cent():
    """While 5 % are found where they differ by 1 %."""
    wild = Machine(between=0.02).verdicts(sessions=1, times=150)
    assert wild.count("drifted") <= 8
    assert Machine().verdicts(np.log(1.05), 1, times=40).count("drifted") >= 30


def test_sessions_that_differ_more_than_assumed_raise_the_error():
    wild = Machine(noise=0.01, between=0.05)
    assert wild.change(0).mean.error > 1.5 * Machine(noise=0.01).change(0).mean.error


def test_a_few_samples_that_take_twice_as_long_change_little():
    disturbed = Machine(noise=0.01, outliers=0.05)
    assert disturbed.verdicts(times=30).count("same") >= 28
    assert disturbed.verdicts(np.log(1.03), times=30).count("drifted") >= 28


def test_cells_that_share_one_u_tell_nothing_of_the_slope():
    before, now = (Machine().levels(seed) for seed in (0, 1))
    change = change_between(before, now, np.full(30, 0.5))
    assert str(change.slope) == "not shown by these cells"
    assert not change.slope.is_shown
    assert np.isfinite(change.within)


def test_levels_without_noise_are_exact():
    """Four rounds of the first session, two of the second, which is 3 % slower."""
    cell, session = np.tile([0, 1, 2], 6), np.repeat([0, 0, 0, 0, 1, 1], 3)
    log_us = np.array([1.0, 2.0, 3.0])[cell] + 0.03 * session
    found = levels_of(samples(cell, session, log_us), CELLS[:4])
    assert found.of_cell == pytest.approx([1.015, 2.015, 3.015, np.nan], nan_ok=True)
    assert found.of_session == pytest.approx([-0.015, 0.015])


def test_cells_of_which_a_side_has_no_level_do_not_count():
    before, now = (Machine().levels(seed) for seed in (0, 1))
    rest = np.append(np.nan, now.of_cell[1:])
    found = change_between(before, now._replace(of_cell=rest), SHARE)
    assert found.within == pytest.approx(change_between(before, now, SHARE).within, 0.1)


def test_one_session_of_another_speed_does_not_count():
    rng, session = np.random.default_rng(0), np.repeat(np.arange(ROUNDS), 30)
    cell = np.concatenate([rng.permutation(30) for _ in range(ROUNDS)])
    log_us = 7.0 + 0.01 * rng.standard_normal(len(cell)) + 0.3 * (session == 2)
    found = levels_of(samples(cell, session, log_us), CELLS)
    assert len(found.of_session) == ROUNDS - 1
    assert np.abs(found.of_cell - 7.0).max() < 0.03


@settings(max_examples=20)
@given(st.floats(-5.0, 5.0), st.integers(0, 99))
def test_a_change_has_no_unit(log_factor, seed):
    before, now = Machine().levels(seed), Machine().levels(seed + 1)
    moved = [s._replace(of_cell=s.of_cell + log_factor) for s in (before, now)]
    own, other = change_between(before, now, SHARE), change_between(*moved, SHARE)
    assert other.mean.value == pytest.approx(own.mean.value, abs=1e-6)
    assert other.verdict == own.verdict
