"""Intervals of sums over prompts hold the truth as often as they say."""

import math
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from evict_profile.traces.resampling import MIN_PROMPTS, Bootstrap, optimism


def tokens_and_us(rng, prompts, spread):
    """Sums [prompts, 2] of tokens and microseconds; prompts differ by `spread`."""
    us = 1000.0 * np.exp(spread * rng.standard_normal(prompts))
    return np.stack([np.full(prompts, 100.0), us], axis=1)


def rate(sums):
    tokens, us = sums
    return tokens / us


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
