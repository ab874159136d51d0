"""Medians, their intervals and comparisons mean what they say."""

import math
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from evict_profile.stats import (
    Estimate,
    folds,
    main_mode,
    median_interval,
    median_of_draws,
    rank_within,
    summarise_errors,
)

latencies = st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=60)


def exact_coverage(count, rank):
    """P(x_(rank) <= true median <= x_(count + 1 - rank)), any continuous shape."""
    return float(1.0 - 2.0 * binom.cdf(rank - 1, count, 0.5))


@given(st.integers(6, 400))
def test_interval_covers_with_95_percent_and_is_the_tightest(count):
    """The order statistics chosen cover at least 95 %, and the next pair does not."""
    found = median_interval(np.arange(1.0, count + 1.0))
    rank = int(found.low)
    assert found.high == count + 1 - rank
    assert exact_coverage(count, rank) >= 0.95 > exact_coverage(count, rank + 1)


def test_interval_covers_the_true_median_of_a_skewed_law():
    """In 2,000 draws of 15 exponentials the interval holds ln 2 in over 95 %."""
    draws = np.random.default_rng(0).exponential(size=(2000, 15))
    found = [median_interval(row) for row in draws]
    share = np.mean([f.low <= math.log(2.0) <= f.high for f in found])
    assert 0.95 < share < 0.99


@given(st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=5))
def test_fewer_than_six_samples_bound_nothing(values):
    """Below 6 samples the interval, and so its half-width, is infinite."""
    found = median_interval(values)
    assert (found.low, found.high) == (-math.inf, math.inf)


@given(latencies, st.randoms())
def test_median_interval_ignores_order(values, rng):
    """Shuffled samples have the same interval, and it holds the median."""
    shuffled = list(values)
    rng.shuffle(shuffled)
    found = median_interval(values)
    assert found == median_interval(shuffled)
    assert found.low <= found.value <= found.high


def test_median_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


few = st.lists(st.floats(0.0, 1e3), min_size=1, max_size=4)


@given(few, st.sampled_from([1, 3, 5]))
def test_medians_of_draws_have_the_moments_of_all_draws(values, count):
    """Over all samples of that size that the values can make, equally likely."""
    medians = [np.median(drawn) for drawn in product(values, repeat=count)]
    mean, deviation = median_of_draws(np.array(values), count)
    assert mean == pytest.approx(np.mean(medians), abs=1e-6)
    assert deviation == pytest.approx(np.std(medians), abs=1e-5)


def test_what_is_usual_is_the_middle_of_the_main_kind():
    """Some values of twice the size do not move it; they move the median."""
    main = np.linspace(0.98, 1.02, 81)
    both = np.concatenate([main, 2.0 * main[:20]])
    assert main_mode(both) == pytest.approx(1.0)
    assert np.median(both) > 1.004


def test_error_summary_by_hand():
    """Relative errors of 0 %, 10 % and 50 %."""
    found = summarise_errors(np.array([1.0, 11.0, 15.0]), np.array([1.0, 10.0, 10.0]))
    assert (found.median, found.max) == pytest.approx((0.1, 0.5))
    assert found.p90 == pytest.approx(0.42)
    assert str(found) == "median 10.0%, p90 42.0%, max 50.0% over 3 cells"


def test_a_ratio_reaches_by_one_factor_to_both_sides():
    """As far as percentiles where resamples are symmetric in logs."""
    logs = np.random.default_rng(0).standard_normal(200_000)
    logs[0] = 0.0
    found, told = Estimate.of_ratio(np.exp(logs)), Estimate.of(np.exp(logs))
    assert 1.0 / found.low == pytest.approx(found.high)
    assert found.high == pytest.approx(told.high, rel=0.02)
    one_sided = Estimate.of_ratio(np.exp(np.abs(logs)))
    assert one_sided.low == pytest.approx(found.low)


def test_an_interval_holds_its_value():
    """Where resampling is biased: noise only ever raises an absolute error."""
    assert Estimate.of(np.array([0.1, 0.2, 0.3])).low == 0.1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-3, 3)), max_size=30))
def test_rank_within_counts_the_better_members_of_a_group(pairs):
    """Higher values of the same group, and earlier equal ones."""
    groups, values = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    expected = [
        sum(g == group and (-v, at) < (-value, i) for at, (g, v) in enumerate(pairs))
        for i, (group, value) in enumerate(pairs)
    ]
    assert rank_within(groups, values.astype(np.float64)).tolist() == expected


def test_stats_imports_with_numpy_alone():
    """The runtime loads it inside a server, where scipy's import is slow."""
    code = "import sys, evict_profile.stats; assert 'scipy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@given(st.integers(1, 60), st.integers(1, 12), st.integers(0, 99))
def test_folds_are_even_and_all_of_them_are_used(count, most, seed):
    for fold in (folds(count, most), folds(count, most, seed)):
        sizes = np.bincount(fold)
        assert len(sizes) == min(count, most)
        assert sizes.max() - sizes.min() <= 1
