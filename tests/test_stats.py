"""Medians, their intervals and comparisons mean what they say."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from evict_profile.stats import (
    MedianInterval,
    compare,
    median_interval,
    relative_spread,
    summarise_errors,
)

latencies = st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=60)


def exact_coverage(count: int, rank: int) -> float:
    """P(x_(rank) <= true median <= x_(count + 1 - rank)), any continuous shape."""
    return float(1.0 - 2.0 * binom.cdf(rank - 1, count, 0.5))


@given(st.integers(6, 400))
def test_interval_covers_with_95_percent_and_is_the_tightest(count: int) -> None:
    """The order statistics chosen cover at least 95 %, and the next pair does not."""
    found = median_interval(np.arange(1.0, count + 1.0))
    rank = int(found.low)
    assert found.high == count + 1 - rank
    assert exact_coverage(count, rank) >= 0.95 > exact_coverage(count, rank + 1)


def test_interval_covers_the_true_median_of_a_skewed_law() -> None:
    """In 2,000 draws of 15 exponentials the interval holds ln 2 in over 95 %."""
    draws = np.random.default_rng(0).exponential(size=(2000, 15))
    found = [median_interval(row) for row in draws]
    share = np.mean([f.low <= math.log(2.0) <= f.high for f in found])
    assert 0.95 < share < 0.99


@given(st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=5))
def test_fewer_than_six_samples_bound_nothing(values: list[float]) -> None:
    """Below 6 samples the interval, and so its half-width, is infinite."""
    found = median_interval(values)
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert found.relative_half_width == math.inf


@given(latencies, st.randoms())
def test_median_interval_ignores_order(values: list[float], rng: object) -> None:
    """Shuffled samples have the same interval, and it holds the median."""
    shuffled = list(values)
    rng.shuffle(shuffled)
    found = median_interval(values)
    assert found == median_interval(shuffled)
    assert found.low <= found.median <= found.high
    assert found.count == len(values)


@given(latencies.filter(lambda v: len(v) >= 6), st.floats(1e-3, 1e3))
def test_half_width_has_no_unit(values: list[float], factor: float) -> None:
    """Microseconds or milliseconds: the relative half-width is the same."""
    scaled = median_interval([factor * v for v in values]).relative_half_width
    own = median_interval(values).relative_half_width
    assert scaled == pytest.approx(own, rel=1e-6, abs=1e-9)


def test_median_of_nothing_is_refused() -> None:
    """No samples, no median."""
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


def test_spread_ignores_an_outlier() -> None:
    """One wild value does not move the quartiles of nine."""
    calm = [float(v) for v in range(100, 109)]
    assert relative_spread([*calm[:-1], 1e9]) == relative_spread(calm)


def test_error_summary_by_hand() -> None:
    """Relative errors of 0 %, 10 % and 50 %."""
    found = summarise_errors(np.array([1.0, 11.0, 15.0]), np.array([1.0, 10.0, 10.0]))
    assert (found.median, found.max) == pytest.approx((0.1, 0.5))
    assert found.p90 == pytest.approx(0.42)
    assert str(found) == "median 10.0%, p90 42.0%, max 50.0% over 3 cells"


BEFORE = MedianInterval(100.0, 98.0, 102.0, 12)


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        (MedianInterval(102.0, 101.9, 102.1, 12), "same"),
        (MedianInterval(110.0, 108.0, 112.0, 12), "drifted"),
        (MedianInterval(90.0, 88.0, 92.0, 12), "drifted"),
        (MedianInterval(110.0, 101.0, 119.0, 12), "unclear"),
        (MedianInterval(110.0, -math.inf, math.inf, 3), "unclear"),
    ],
)
def test_compare_verdicts(after: MedianInterval, verdict: str) -> None:
    """Inside the floor: same. Outside: drifted if apart, else unclear."""
    assert compare(BEFORE, after, floor=0.03) == verdict


@given(st.floats(1.0, 1e6), st.floats(0.0, 0.5))
def test_a_measurement_agrees_with_itself(median: float, floor: float) -> None:
    """Any measurement is the same as itself, at any floor."""
    own = MedianInterval(median, median, median, 12)
    assert compare(own, own, floor) == "same"
