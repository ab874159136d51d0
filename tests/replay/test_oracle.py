"""Hindsight: never slower than anyone, and exactly the shortest way."""

from functools import lru_cache

import numpy as np
import pytest

from evict_profile.replay.oracle import oracle_run
from evict_profile.replay.policies import Fixed
from evict_profile.replay.simulate import StepTimes, simulate
from tests.replay.conftest import policies


@pytest.mark.parametrize("batch", [1, 3])
def test_no_policy_is_faster(arrays, table, batch):
    """Alone in its batch that is proven; in a larger one it is so here.

    The oracle verifies accepted nodes alone.
    """
    costs = StepTimes(table, arrays, batch)
    run = oracle_run(arrays, costs, batch, seed=0)
    assert (run.verified == 1 + run.accepted).all()
    fixed = [Fixed("", depth, width) for depth in (1, 2, 4) for width in (2, 4, 12)]
    for policy in (*fixed, *(make() for make in policies(table).values())):
        found = simulate(arrays, policy, costs, batch, seed=0)
        assert found.tokens_per_s <= run.tokens_per_s


def test_the_way_is_the_shortest_of_all(arrays, costs):
    """Against a search from the front over every depth at every place."""

    @lru_cache(None)
    def to_go_us(row):
        found = []
        for depth in range(arrays.depth + 1):
            level = arrays.drafted(depth)
            for most in range(depth + 1):
                kept = level.accepted[row].copy()
                kept[arrays.drafted(most).accepted.shape[1] :] = False
                cost = costs.step(np.array([row]), level.expert_row[row][kept], depth)
                committed = np.array([1 + int(kept.sum())])
                ahead = int(arrays.next_rows(np.array([row]), committed)[0])
                found.append(cost.us + (to_go_us(ahead) if ahead >= 0 else 0.0))
        return min(found)

    shortest = sum(to_go_us(int(row)) for row in arrays.first)
    run = oracle_run(arrays, costs, 1, seed=0)
    assert run.step_us.sum() == pytest.approx(shortest)
