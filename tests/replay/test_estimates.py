"""Sums by prompt, and what resampling them says."""

import numpy as np
import pytest

from evict_profile.replay.estimates import (
    COLUMNS,
    FEWEST_PROMPTS,
    Resamples,
    account,
    tokens_per_s,
)
from evict_profile.replay.ground import Ground
from evict_profile.replay.policies import full_tree
from evict_profile.replay.prices import Prices
from evict_profile.replay.walk import walk
from evict_profile.runtime import CostTable


def accounts(rng: np.random.Generator, prompts: int, spread: float) -> np.ndarray:
    """Made-up sums [1, prompts, columns]; prompts differ by `spread`."""
    tokens = np.full(prompts, 100.0)
    us = 1000.0 * np.exp(spread * rng.standard_normal(prompts))
    columns = {"tokens": tokens, "us": us, "requests": tokens / 2.0}
    found = [columns.get(name, np.zeros(prompts)) for name in COLUMNS]
    return np.stack(found, axis=1)[None]


def test_an_account_adds_up_to_its_run(ground: Ground, table: CostTable) -> None:
    """Shares of a step's time are its time, over a batch."""
    run = walk(ground, full_tree(24, 4), Prices(table, ground, 3), 3, seed=0)
    whole = dict(zip(COLUMNS, account(ground, [run])[0].sum(axis=0), strict=True))
    assert whole["tokens"] == run.tokens
    assert whole["us"] == pytest.approx(run.step_us.sum())
    assert whole["requests"] == run.rows.size
    assert whole["step_us"] == pytest.approx(3 * run.step_us.sum())
    sums = Resamples(1, len(ground.prompts)).sums(account(ground, [run]))
    assert tokens_per_s(sums)[0] == pytest.approx(run.tokens_per_s)


def test_what_is_everywhere_alike_is_known_exactly() -> None:
    """Prompts that do not differ leave no doubt."""
    drawn = Resamples(1, 8)
    sums = drawn.sums(accounts(np.random.default_rng(0), 8, spread=0.0))
    found = drawn.estimate(tokens_per_s(sums))
    assert found.low == pytest.approx(found.value) == pytest.approx(found.high)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Within what 200 simulations can tell; small samples make them a little short."""
    rng, drawn, held = np.random.default_rng(1), Resamples(1, 30), 0
    truth = 1e6 * 100.0 / (1000.0 * np.exp(0.5 * 0.3**2))
    for _ in range(200):
        sums = drawn.sums(accounts(rng, 30, spread=0.3))
        found = drawn.estimate(tokens_per_s(sums))
        held += found.low <= truth <= found.high
    assert 0.88 <= held / 200 <= 0.99


def test_a_comparison_is_paired() -> None:
    """A tenth faster on every prompt is a tenth faster, however they differ."""
    drawn = Resamples(1, 10)
    slow = accounts(np.random.default_rng(2), 10, spread=1.0)
    fast = slow.copy()
    fast[..., COLUMNS.index("us")] /= 1.1
    found = drawn.estimate(
        tokens_per_s(drawn.sums(fast)) / tokens_per_s(drawn.sums(slow))
    )
    assert (found.low, found.value, found.high) == pytest.approx((1.1, 1.1, 1.1))


def test_few_prompts_tell_nothing() -> None:
    """Intervals are unbounded, and nothing is above or below one."""
    prompts = FEWEST_PROMPTS - 1
    drawn = Resamples(5, prompts)
    one = np.repeat(accounts(np.random.default_rng(0), prompts, 0.3), 5, axis=0)
    found = drawn.estimate(tokens_per_s(drawn.sums(one)))
    assert (found.low, found.high) == (-np.inf, np.inf)
    assert not (found.above_one or found.below_one or found.known)
