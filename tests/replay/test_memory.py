"""What steps tell of later steps."""

import numpy as np
import pytest

from evict_profile.replay.cell import Place
from evict_profile.replay.contest import Contest
from evict_profile.replay.ground import Ground
from evict_profile.replay.memory import (
    HALF_LIVES,
    autocorrelation,
    correlations,
    full_walk,
    memory,
)
from evict_profile.replay.policies import full_tree
from evict_profile.replay.prices import Prices
from evict_profile.replay.walk import walk
from evict_profile.runtime import CostTable


def test_alternating_steps_are_opposed_to_the_next() -> None:
    """And alike to the one after that."""
    series = [np.array([1.0, 3.0] * 8), np.array([3.0, 1.0] * 8)]
    assert autocorrelation(series, 1) == pytest.approx(-1.0)
    assert autocorrelation(series, 2) == pytest.approx(1.0)


def test_replies_that_differ_are_alike_within() -> None:
    """An easy reply stays easy, at every lag."""
    series = [np.full(10, 4.0), np.full(10, 1.0)]
    assert autocorrelation(series, 5) == pytest.approx(1.0)


def test_chance_is_like_nothing() -> None:
    """Within the noise that is drawn beside it."""
    rng = np.random.default_rng(0)
    assert abs(autocorrelation([rng.standard_normal(4000)], 3)) < 1.96 / 4000**0.5


def test_steps_all_alike_have_no_correlation() -> None:
    """There is nothing to tell, and no division by zero."""
    assert autocorrelation([np.ones(9)], 1) == 0.0


def test_the_full_walk_is_that_of_the_full_tree(ground: Ground, prices: Prices) -> None:
    """Reply by reply."""
    run = walk(ground, full_tree(24, 4), prices, 1, seed=0)
    for reply in range(len(ground.first)):
        rows = run.rows[ground.reply[run.rows[:, 0]] == reply, 0]
        assert full_walk(ground, reply).tolist() == rows.tolist()


def test_lags_without_two_steps_are_left_out(ground: Ground) -> None:
    """24 tokens are a dozen steps at the most."""
    found = correlations(ground)
    assert [lag.steps for lag in found] == list(range(1, len(found) + 1))
    assert 3 <= len(found) < 24
    assert all(lag.noise > 0.0 for lag in found)


def test_the_runtimes_own_memory_is_the_measure(
    ground: Ground, table: CostTable
) -> None:
    """Others are compared with it, and the best is at least as good."""
    found = memory(Contest(ground, table, Place("mixed", 0.0, 1), seeds=2))
    assert tuple(each.steps for each in found.half_lives) == HALF_LIVES
    own = next(each for each in found.half_lives if each.steps == 2.0)
    assert own.over_default.value == 1.0
    assert found.best.over_default.value >= 1.0
