"""Medians, their intervals and comparisons mean what they say."""

import math
import subprocess
import sys
import tracemalloc
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import binom

from evict_profile.stats import (
    MIN_PROMPTS,
    Bootstrap,
    Estimate,
    folds,
    main_mode,
    median_interval,
    median_of_draws,
    optimism,
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


def test_many_prompts_are_resampled_in_little_memory():
    """As wide an interval as every prompt by itself gives, by the formula."""
    values = np.random.default_rng(0).exponential(size=(65_536, 1)) + 1.0
    values[::2] += 3.0
    tracemalloc.start()
    found = Bootstrap(len(values))
    sums = found.sums(values)[0]
    assert tracemalloc.get_traced_memory()[1] < 1e8
    tracemalloc.stop()
    assert sums[0] == pytest.approx(values.sum())
    naive = values.std() * math.sqrt(len(values))
    assert sums[1:].std() == pytest.approx(naive, rel=0.1)


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


def tokens_and_us(rng, prompts, spread):
    """Sums [prompts, 2] of tokens and microseconds; prompts differ by `spread`."""
    us = 1000.0 * np.exp(spread * rng.standard_normal(prompts))
    return np.stack([np.full(prompts, 100.0), us], axis=1)


def rate(sums):
    tokens, us = sums
    return tokens / us


def test_equal_prompts_leave_no_doubt():
    bootstrap = Bootstrap(8)
    sums = bootstrap.sums(tokens_and_us(np.random.default_rng(0), 8, spread=0.0))
    found = bootstrap.estimate(rate(sums))
    assert found.low == pytest.approx(found.value) == pytest.approx(found.high)


@pytest.mark.parametrize("prompts", [8, 30])
def test_bootstrap_intervals_cover_as_often_as_they_say(prompts):
    """Within what 300 simulations can tell; plain percentiles of 8 hold 87 in 100."""
    rng, bootstrap, held = np.random.default_rng(1), Bootstrap(prompts), 0
    truth = 100.0 / (1000.0 * np.exp(0.5 * 0.3**2))
    for _ in range(300):
        sums = bootstrap.sums(tokens_and_us(rng, prompts, spread=0.3))
        found = bootstrap.estimate(rate(sums))
        held += found.low <= truth <= found.high
    assert 0.92 <= held / 300 <= 0.98


def test_percentiles_lie_further_out_where_prompts_are_few():
    """As Student's t and sqrt(n / (n - 1)) ask; by scipy's own distributions."""
    for prompts in (5, 16, 1000):
        reach = np.sqrt(prompts / (prompts - 1)) * stats.t.ppf(0.975, prompts - 1)
        assert Bootstrap(prompts).tail == pytest.approx(stats.norm.sf(reach))


@pytest.mark.parametrize("true", [np.zeros(12), np.array([0.0, 0.05, 0.4])])
def test_less_its_optimism_a_choice_is_told_as_it_fares_elsewhere(true):
    """Of equals and of some that differ, over 200 draws; intervals hold the truth."""
    rng, bootstrap = np.random.default_rng(3), Bootstrap(12)
    told, lost, held = [], [], 0
    for _ in range(200):
        logs = true + 0.3 * rng.standard_normal((12, len(true)))
        values = np.exp(bootstrap.sums(logs) / 12.0)
        best = values.argmax(axis=0)
        flattered = optimism(values, best)
        found = bootstrap.ratio(values[best[0]] * np.exp(-flattered))
        told.append(flattered[0])
        lost.append(np.log(values[best[0], 0]) - true[best[0]])
        held += found.low <= np.exp(true[best[0]]) <= found.high
    assert np.mean(told) == pytest.approx(np.mean(lost), rel=0.4)
    assert 0.92 <= held / 200 <= 0.99


def test_in_a_resample_a_choice_errs_as_that_of_the_resample_does():
    """Of two candidates; the second is chosen in the last resample."""
    logs = np.array([[0.5, 0.7, 0.1], [0.4, 0.3, 0.9]])
    less = logs[0] - optimism(np.exp(logs), np.array([0, 0, 1]))
    gained = (0.9 - 0.4) - (0.1 - 0.5)
    told = 0.5 - gained / 2.0
    errors = np.array([0.7 - 0.5, 0.9 - 0.4]) - gained / 2.0
    assert less == pytest.approx([told, *(told + errors)])


def test_one_candidate_flatters_nothing():
    values = np.exp(np.random.default_rng(0).standard_normal((1, 50)))
    assert not optimism(values, np.zeros(50, dtype=np.int64)).any()


def test_a_ratio_reaches_by_one_factor_to_both_sides():
    """As far as percentiles where resamples are symmetric in logs."""
    logs = np.random.default_rng(0).standard_normal(200_000)
    logs[0] = 0.0
    found, told = Estimate.of_ratio(np.exp(logs)), Estimate.of(np.exp(logs))
    assert 1.0 / found.low == pytest.approx(found.high)
    assert found.high == pytest.approx(told.high, rel=0.02)
    one_sided = Estimate.of_ratio(np.exp(np.abs(logs)))
    assert one_sided.low == pytest.approx(found.low)


def test_a_comparison_is_paired():
    """A tenth faster on every prompt is a tenth faster, however they differ."""
    bootstrap = Bootstrap(10)
    slow = tokens_and_us(np.random.default_rng(2), 10, spread=1.0)
    fast = slow / [1.0, 1.1]
    found = bootstrap.ratio(rate(bootstrap.sums(fast)) / rate(bootstrap.sums(slow)))
    assert (found.low, found.value, found.high) == pytest.approx((1.1, 1.1, 1.1))


def test_few_prompts_bound_nothing():
    prompts = MIN_PROMPTS - 1
    bootstrap = Bootstrap(prompts, seeds=5)
    one = tokens_and_us(np.random.default_rng(0), prompts, 0.3)
    values = rate(bootstrap.sums(np.stack([one] * 5)))
    for found in (
        bootstrap.estimate(values),
        bootstrap.ratio(values),
    ):
        assert (found.low, found.high) == (-np.inf, np.inf)
        assert found.verdict == "not settled" and not found.known


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
