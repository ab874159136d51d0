"""The depth of the coming step is the one of the best rate, and changes seldom."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.drafting import DraftClock
from evict_profile.runtime.depth import (
    LEAST_GAIN,
    LEAST_STEPS,
    MOST_STEPS,
    DepthChoice,
)

DEPTHS = 2, 5
VERIFY_US = 100.0


def clock(*levels_us):
    """Of drafts whose levels take these times, one after the other."""
    draft_us = 0.0, *np.cumsum(levels_us).tolist()
    return DraftClock(1, draft_us, fixed_us=10.0, plain_fixed_us=10.0)


CLOCK = clock(*[40.0] * 5)


def geometric(share, depth, requests=1000):
    """Accepted drafts of requests that go on at each level with this probability."""
    reached = np.floor(requests * share ** np.arange(depth + 1)).astype(int)
    stopped = reached - np.append(reached[1:], 0)
    return np.repeat(np.arange(depth + 1), stopped)


def run(choice, share, steps, rng=None):
    """Steps of a text that accepts each level with this probability; their depths."""
    seen = []
    for _ in range(steps):
        depth = choice.choose(CLOCK)
        seen.append(depth)
        if rng is None:
            accepted = geometric(share, depth)
        else:
            accepted = np.array([min(rng.geometric(1.0 - share) - 1, depth)])
        choice.observe(accepted, VERIFY_US)
    return seen


populations = st.lists(st.integers(0, 5), min_size=1, max_size=30).map(np.array)


@given(populations)
def test_expected_tokens_are_the_means_over_requests_cut_at_each_depth(accepted):
    """Within the weight of the one step that is assumed."""
    choice = DepthChoice(DEPTHS)
    for _ in range(100):
        choice.observe(accepted, VERIFY_US)
    by_hand = [1.0 + np.minimum(accepted, depth).mean() for depth in range(6)]
    assert choice.expected_tokens() == pytest.approx(by_hand, rel=0.15)


@given(populations, st.lists(st.floats(1.0, 100.0), min_size=6, max_size=6))
def test_the_depth_has_the_best_rate_of_all(accepted, costs):
    verify_us, *levels_us = costs
    planted, choice = clock(*levels_us), DepthChoice(DEPTHS)
    for _ in range(LEAST_STEPS):
        choice.observe(accepted, verify_us)
        depth = choice.choose(planted)
    tokens = choice.expected_tokens()
    rates = {d: tokens[d] / (planted.beside_us(d) + verify_us) for d in DEPTHS}
    assert rates[depth] * LEAST_GAIN >= max(rates.values())
    assert depth == 5 or rates[2] > rates[5]


def test_hard_text_drafts_fewer_levels_and_easy_text_all_again():
    choice = DepthChoice(DEPTHS)
    assert run(choice, 0.95, 200) == [5] * 200
    assert run(choice, 0.3, 200)[50:] == [2] * 150
    assert run(choice, 0.95, 200)[50:] == [5] * 150
    assert choice.switches == 2


def test_levels_that_are_not_drafted_count_as_the_last_one_that_is():
    choice, very_slow = DepthChoice(DEPTHS), clock(*[1e4] * 5)
    while choice.depth == 5:
        choice.observe(geometric(0.2, 5), VERIFY_US)
        choice.choose(very_slow)
    for _ in range(300):
        choice.observe(geometric(0.8, 2), VERIFY_US)
    by_hand = np.append(1.0, 1.0 + np.cumsum(0.8 ** np.arange(1, 6)))
    assert choice.expected_tokens() == pytest.approx(by_hand, rel=0.02)


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.floats(1.0, 1e4), st.floats(1.0, 1e4)),
        min_size=200,
        max_size=200,
    )
)
def test_a_depth_stays_for_the_least_number_of_steps(steps):
    choice, seen = DepthChoice(DEPTHS), []
    for accepted, level_us, verify_us in steps:
        depth = choice.choose(clock(*[level_us] * 5))
        choice.observe(np.array([min(accepted, depth)]), verify_us)
        seen.append(depth)
    changes = np.flatnonzero(np.diff(seen)) + 1
    assert len(changes) == choice.switches
    assert (np.diff(changes, prepend=0) >= LEAST_STEPS - 1).all()


def test_a_depth_that_fails_is_tried_less_and_less():
    """Two levels promise five, and five are never what two promise."""
    choice, seen = DepthChoice(DEPTHS), []
    for _ in range(6000):
        depth = choice.choose(CLOCK)
        seen.append(depth)
        accepted = geometric(0.99, 2) if depth == 2 else np.full(1000, 2)
        choice.observe(accepted, VERIFY_US)
    assert sum(depth == 5 for depth in seen[-5000:]) < 0.08 * 5000
    assert choice.switches < 2 * 6000 / (MOST_STEPS + LEAST_STEPS) + 10


def test_text_that_turns_gains_most_of_what_the_best_depth_of_each_would():
    """Drawn anew each step, for one request, in texts of 400 steps."""
    rng, choice, seen = np.random.default_rng(5), DepthChoice(DEPTHS), []
    texts = [0.95, 0.3] * 10
    for share in texts:
        seen.append(run(choice, share, 400, rng))

    def rate(share, depth):
        tokens = sum(share**level for level in range(depth + 1))
        return tokens / (CLOCK.beside_us(depth) + VERIFY_US)

    pairs = list(zip(texts, seen, strict=True))
    ours = sum(rate(s, d) for s, depths in pairs for d in depths)
    best = 400 * sum(max(rate(s, d) for d in DEPTHS) for s in texts)
    deepest = 400 * sum(rate(s, 5) for s in texts)
    assert ours > 0.93 * best
    assert ours > 1.1 * deepest
