"""A simulation against its own rules, written down a second time and slowly."""

from itertools import islice

import numpy as np
import pytest

from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.policies import RATE, RATE_DEPTH, RATIO, Guided
from evict_profile.replay.simulate import StepTimes, reply_order, simulate
from tests.replay.conftest import policies
from tests.replay.slow_simulate import slow_simulate

NAMES = ("plain", "full tree", "pair", RATIO, RATE, RATE_DEPTH)
ALL = [(name, batch, 1) for name in NAMES for batch in (1, 3, 12)]


@pytest.mark.parametrize(
    ("name", "batch", "every"), [*ALL, ("pair", 1, 3), ("pair", 3, 3)]
)
def test_a_simulation_agrees_with_the_slow_one(trace, table, name, batch, every):
    """Also in a batch of more requests than there are replies.

    A sparse trace goes on to the next recorded step.
    """
    trace = trace.take(np.flatnonzero(trace.position % every == 0))
    assert trace.dense == (every == 1)
    arrays, make = TraceArrays(trace), policies(table)[name]
    costs = StepTimes(table, arrays, batch)
    fast = simulate(arrays, make(), costs, batch, seed=3)
    slow = slow_simulate(trace, make(), table, batch, seed=3)
    assert (fast.tokens, len(fast.rows)) == (slow.tokens, slow.steps)
    assert fast.verified.sum() == slow.verified
    assert fast.cost[:, 3] == pytest.approx(slow.unions)
    assert fast.step_us.sum() == pytest.approx(slow.us, rel=1e-9)


def test_the_order_is_one_permutation_again_and_again():
    first, second, other = (
        list(islice(reply_order(5, seed), count))
        for seed, count in ((7, 5), (7, 10), (8, 5))
    )
    assert sorted(first) == list(range(5))
    assert second == first * 2
    assert first != other


def test_a_policy_is_told_of_tokens_beyond_a_replys_end(arrays, costs, table):
    """Its statistics are of what was accepted, not of where replies stop."""
    told: list[int] = []

    class Listening(Guided):
        def observe(self, committed, step_us):
            told.append(committed)
            super().observe(committed, step_us)

    run = simulate(arrays, Listening(RATE, 4, table), costs, 1, seed=0)
    assert told == (1 + run.accepted[:, 0]).tolist()
    assert sum(told) > run.tokens
