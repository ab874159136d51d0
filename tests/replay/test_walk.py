"""The walk against its own rules, written down a second time and slowly."""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from evict_profile.replay.ground import Ground
from evict_profile.replay.guided import Guided, guided
from evict_profile.replay.policies import (
    Fixed,
    Policy,
    Threshold,
    full_tree,
    plain_decoding,
)
from evict_profile.replay.prices import Prices
from evict_profile.replay.walk import (
    COLUMNS,
    Run,
    account,
    reply_order,
    tokens_per_s,
    walk,
)
from evict_profile.runtime import CostTable
from evict_profile.stats import Bootstrap
from evict_profile.traces import Trace
from tests.replay.slow_walk import Tally, slow_walk

Make = Callable[[CostTable], Policy]

POLICIES: dict[str, Make] = {
    "plain": lambda table: plain_decoding(),
    "full tree": lambda table: full_tree(24, 4),
    "pair": lambda table: Fixed("pair", 2, 5),
    "threshold": lambda table: Threshold("threshold", 4, 0.2),
    **{
        name: lambda table, name=name: guided(table, 4)[name]()  # type: ignore[misc]
        for name in ("ratio", "rate", "rate, raw scores", "rate and depth")
    },
}


def both(
    trace: Trace, table: CostTable, make: Make, batch: int, seed: int
) -> tuple[Run, Tally]:
    """The same run, fast and slow."""
    ground = Ground(trace)
    prices = Prices(table, ground, batch)
    fast = walk(ground, make(table), prices, batch, seed)
    return fast, slow_walk(trace, make(table), table, batch, seed)


@pytest.mark.parametrize("batch", [1, 3, 12])
@pytest.mark.parametrize("name", POLICIES)
def test_walk_agrees_with_the_slow_one(
    trace: Trace, table: CostTable, name: str, batch: int
) -> None:
    """Tokens, time, verified tokens and unions, step by step."""
    fast, slow = both(trace, table, POLICIES[name], batch, seed=3)
    assert fast.tokens == slow.tokens
    assert len(fast.rows) == slow.steps
    assert fast.verified.sum() == slow.verified
    assert fast.price[:, 3] == pytest.approx(slow.unions)
    assert fast.step_us.sum() == pytest.approx(slow.us, rel=1e-9)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_sparse_trace_goes_on_to_the_next_recorded_step(
    trace: Trace, table: CostTable, batch: int
) -> None:
    """As the slow walk does, whatever was committed."""
    replies = tuple(replace(r, steps=r.steps[::3]) for r in trace.replies)
    sparse = replace(trace, replies=replies)
    assert not sparse.dense
    fast, slow = both(sparse, table, POLICIES["pair"], batch, seed=0)
    assert (fast.tokens, len(fast.rows)) == (slow.tokens, slow.steps)
    assert fast.step_us.sum() == pytest.approx(slow.us)


def test_alone_in_its_batch_each_reply_is_decoded_once(
    trace: Trace, table: CostTable, ground: Ground, prices: Prices
) -> None:
    """All tokens, no more, whatever the policy and the order."""
    for make in POLICIES.values():
        run = walk(ground, make(table), prices, 1, seed=1)
        by_reply = np.bincount(ground.reply[run.rows[:, 0]], run.counted[:, 0])
        assert by_reply.tolist() == [reply.tokens for reply in trace.replies]


def test_plain_decoding_takes_a_step_a_token(ground: Ground, prices: Prices) -> None:
    """It drafts nothing, and pays for nothing else."""
    run = walk(ground, plain_decoding(), prices, 1, seed=0)
    assert len(run.rows) == ground.tokens
    assert not run.price[:, 1].any()
    assert set(run.price[:, 2]) == {50.0}


def test_seats_are_always_full(ground: Ground, table: CostTable) -> None:
    """More seats than replies are filled by taking replies again."""
    batch = len(ground.first) + 3
    run = walk(ground, full_tree(24, 4), Prices(table, ground, batch), batch, 0)
    assert run.rows.shape[1] == batch
    assert run.tokens >= ground.tokens
    assert run.tokens - run.counted[-1].sum() < ground.tokens


def test_the_order_is_one_permutation_again_and_again() -> None:
    """Of all replies, the same for the same seed."""
    first, second = (
        list(islice(reply_order(5, 7), 5)),
        list(islice(reply_order(5, 7), 10)),
    )
    assert sorted(first) == list(range(5))
    assert second == first * 2
    assert first != list(islice(reply_order(5, 8), 5))


def test_a_policy_is_told_of_tokens_beyond_a_replys_end(
    ground: Ground, prices: Prices
) -> None:
    """Its statistics are of what was accepted, not of where replies stop."""
    told: list[int] = []

    class Listening(Guided):
        def __init__(self) -> None:
            self.name, self.depth = "listening", 4

        def deeper(self, *_: object) -> bool:
            return True

        def keep(self, path_prob: np.ndarray, *_: object) -> np.ndarray:
            return path_prob > 0.0

        def observe(self, committed: int, step_us: float) -> None:
            told.append(committed)

    run = walk(ground, Listening(), prices, 1, seed=0)
    assert told == (1 + run.accepted[:, 0]).tolist()
    assert sum(told) > run.tokens


def test_an_account_adds_up_to_its_run(ground: Ground, table: CostTable) -> None:
    """Shares of a step's time are its time, over a batch."""
    run = walk(ground, full_tree(24, 4), Prices(table, ground, 3), 3, seed=0)
    whole = dict(zip(COLUMNS, account(ground, [run])[0].sum(axis=0), strict=True))
    assert whole["tokens"] == run.tokens
    assert whole["us"] == pytest.approx(run.step_us.sum())
    assert whole["requests"] == run.rows.size
    assert whole["step_us"] == pytest.approx(3 * run.step_us.sum())
    sums = Bootstrap(len(ground.prompts)).sums(account(ground, [run]))
    assert tokens_per_s(sums)[0] == pytest.approx(run.tokens_per_s)
