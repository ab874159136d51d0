"""Hindsight: never slower than anyone, and exactly the shortest way."""

from functools import lru_cache

import numpy as np
import pytest

from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.oracle import oracle_run
from evict_profile.replay.policies import (
    Fixed,
    MakePolicy,
    Threshold,
    full_tree,
    guided,
    plain_decoding,
)
from evict_profile.replay.simulate import StepPrices, simulate
from evict_profile.runtime import CostTable


def everyone(table: CostTable) -> list[MakePolicy]:
    fixed: list[MakePolicy] = [
        lambda d=d, w=w: Fixed("", d, w)  # type: ignore[misc]
        for d in (1, 2, 4)
        for w in (2, 4, 12)
    ]
    return [
        plain_decoding,
        lambda: full_tree(24, 4),
        lambda: Threshold("", 4, 0.3),
        *fixed,
        *guided(table, 4).values(),
    ]


@pytest.mark.parametrize("batch", [1, 3])
def test_no_policy_is_faster(arrays: TraceArrays, table: CostTable, batch: int) -> None:
    """Alone in its batch that is proven; in a larger one it is so here."""
    prices = StepPrices(table, arrays, batch)
    best = oracle_run(arrays, prices, batch, seed=0).tokens_per_s
    for make in everyone(table):
        assert simulate(arrays, make(), prices, batch, seed=0).tokens_per_s <= best


def test_the_way_is_the_shortest_of_all(
    arrays: TraceArrays, prices: StepPrices
) -> None:
    """Against a search from the front over every depth at every place."""

    @lru_cache(None)
    def to_go_us(row: int) -> float:
        found = []
        for depth in range(arrays.depth + 1):
            level = arrays.drafted(depth)
            for most in range(depth + 1):
                kept = level.accepted[row].copy()
                kept[arrays.drafted(most).accepted.shape[1] :] = False
                price = prices.step(np.array([row]), level.expert_row[row][kept], depth)
                committed = np.array([1 + int(kept.sum())])
                ahead = int(arrays.next_rows(np.array([row]), committed)[0])
                found.append(price.us + (to_go_us(ahead) if ahead >= 0 else 0.0))
        return min(found)

    shortest = sum(to_go_us(int(row)) for row in arrays.first)
    run = oracle_run(arrays, prices, 1, seed=0)
    assert run.step_us.sum() == pytest.approx(shortest)


def test_it_verifies_accepted_nodes_alone(
    arrays: TraceArrays, table: CostTable
) -> None:
    run = oracle_run(arrays, StepPrices(table, arrays, 3), 3, seed=0)
    assert (run.verified == 1 + run.accepted).all()
