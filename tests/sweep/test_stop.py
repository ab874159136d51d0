"""A cell is done when more samples would tell no more."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.config import StopSpec
from evict_profile.sweep.stop import outcome, samples_needed

RULE = StopSpec(relative_half_width=0.02, min_samples=6, max_samples=30)
latencies = st.lists(st.floats(1.0, 1e6), max_size=40)


@given(st.lists(st.floats(1.0, 1e6), max_size=5))
def test_open_below_the_smallest_count(values: list[float]) -> None:
    """Fewer than min_samples are never enough, however alike."""
    assert outcome(values, RULE) == "open"
    assert samples_needed(values, RULE) == 6 - len(values)


def test_precise_as_soon_as_the_interval_is_narrow() -> None:
    """Six samples within 1 % suffice for 2 %."""
    assert outcome([100.0, 100.2, 99.9, 100.1, 100.0, 99.8], RULE) == "precise"


def test_open_while_the_interval_is_wide() -> None:
    """Six samples spread over 40 % do not suffice."""
    assert outcome([80.0, 90.0, 100.0, 105.0, 110.0, 120.0], RULE) == "open"


def test_capped_at_the_largest_count() -> None:
    """A cell that only gets noisier is left at max_samples."""
    growing = [100.0 + (-1) ** i * i**2 / 10.0 for i in range(30)]
    assert outcome(growing[:29], RULE) == "open"
    assert outcome(growing, RULE) == "capped"


def test_stable_when_the_spread_has_stopped_moving() -> None:
    """Three values in turns: wide for ever, and nothing new to learn."""
    turns = [100.0, 120.0, 110.0] * 6
    assert outcome(turns[:11], RULE) == "open"
    assert outcome(turns, RULE) == "stable"


@given(latencies)
def test_only_a_closed_cell_needs_nothing(values: list[float]) -> None:
    """The guess of what is left is zero exactly when the rule is met."""
    needed = samples_needed(values, RULE)
    assert (needed == 0) == (outcome(values, RULE) != "open")
    assert len(values) >= 30 or needed <= 30 - len(values)


@given(st.integers(0, 2**32 - 1), st.floats(0.001, 0.3))
def test_every_cell_ends(seed: int, noise: float) -> None:
    """Whatever the noise, max_samples closes a cell."""
    draws = 100.0 * np.exp(np.random.default_rng(seed).normal(0.0, noise, 30))
    assert outcome(draws.tolist(), RULE) != "open"


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_the_rule_has_no_unit(factor: float) -> None:
    """Microseconds or milliseconds end at the same sample."""
    draws = 100.0 * np.exp(np.random.default_rng(3).normal(0.0, 0.05, 30))
    for count in range(1, 31):
        scaled = (factor * draws[:count]).tolist()
        assert outcome(scaled, RULE) == outcome(draws[:count].tolist(), RULE)
