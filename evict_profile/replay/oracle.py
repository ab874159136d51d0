"""Oracles: policies that know what the target will accept.

They verify accepted nodes alone and draft no deeper than those reach. For one request
in a dense trace each step leads to a known position, so the shortest way to the end of
the reply is found exactly, backwards from it (`LookaheadOracle`). As far as more work
never costs less, no policy is faster.

A batch advances in lockstep, and a sparse trace does not tell where a shorter step
leads. There `GreedyOracle` picks in each step, for the whole batch, the depth of
largest tokens - rate * time, at the rate that it thereby earns (Dinkelbach, "On
nonlinear fractional programming", 1967). That is optimal if later steps do not depend
on how far a step went. It is a yardstick for policies that decide step by step, and no
proven bound.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.simulate import Run, StepPrices, simulate_with
from evict_profile.stats import Bools, Floats, Ints

CLOSE = 1e-6
"""Relative gain in rate under which another iteration teaches nothing."""


def oracle_run(arrays: TraceArrays, prices: StepPrices, batch: int, seed: int) -> Run:
    """The oracle's run; see the module for when it is a bound."""
    if batch == 1 and arrays.trace.dense:
        policy = LookaheadOracle(arrays, shortest_depths(arrays, prices))
        return simulate_with(arrays, policy, prices, batch, seed)
    rate, run = 0.0, _greedy(arrays, prices, batch, seed, 0.0)
    while run.tokens_per_s > rate * (1.0 + CLOSE):
        rate = run.tokens_per_s
        better = _greedy(arrays, prices, batch, seed, rate / 1e6)
        run = max(run, better, key=lambda each: each.tokens_per_s)
    return run


def _greedy(
    arrays: TraceArrays, prices: StepPrices, batch: int, seed: int, rate_per_us: float
) -> Run:
    return simulate_with(
        arrays, GreedyOracle(arrays, prices, rate_per_us), prices, batch, seed
    )


@dataclass(frozen=True)
class LookaheadOracle:
    """Depths fixed beforehand, one a step, for one request."""

    arrays: TraceArrays
    depth: Ints

    def choose(self, rows: Ints) -> tuple[int, Bools]:
        """What will be accepted, down to the planned depth."""
        depth = int(self.depth[rows[0]])
        return depth, self.arrays.drafted(depth).accepted[rows]

    def observe(self, committed: int, step_us: float) -> None:
        """Nothing to learn."""


@dataclass(frozen=True)
class GreedyOracle:
    """The depth of largest tokens - rate * time in each step."""

    arrays: TraceArrays
    prices: StepPrices
    rate_per_us: float

    def choose(self, rows: Ints) -> tuple[int, Bools]:
        """Of the first that is best, all that will be accepted."""
        return max(
            (self._kept(rows, depth) for depth in range(self.arrays.depth + 1)),
            key=lambda choice: self._worth(rows, *choice),
        )

    def observe(self, committed: int, step_us: float) -> None:
        """Nothing to learn."""

    def _kept(self, rows: Ints, depth: int) -> tuple[int, Bools]:
        return depth, self.arrays.drafted(depth).accepted[rows]

    def _worth(self, rows: Ints, depth: int, kept: Bools) -> float:
        expert_rows = self.arrays.drafted(depth).expert_row[rows][kept]
        committed = np.minimum(1 + kept.sum(axis=1), self.arrays.tokens_left[rows])
        us = self.prices.step(rows, expert_rows, depth).us
        return float(committed.sum()) - self.rate_per_us * us


class _Choices(NamedTuple):
    """Each step drafted to each depth, [steps, depths]; infinite where no better."""

    us: Floats
    committed: Ints


def shortest_depths(arrays: TraceArrays, prices: StepPrices) -> Ints:
    """Depth of each step on the fastest way to its reply's end, int64 [steps]."""
    choices = _choices(arrays, prices)
    best = np.zeros(len(arrays.reply), dtype=np.int64)
    to_go_us = np.zeros(len(arrays.reply) + 1)
    for row in range(len(best) - 1, -1, -1):
        end = arrays.end[arrays.reply[row]]
        ahead = row + choices.committed[row]
        after_us = np.where(ahead < end, to_go_us[np.minimum(ahead, end)], 0.0)
        way_us = choices.us[row] + after_us
        best[row] = way_us.argmin()
        to_go_us[row] = way_us.min()
    return best


def _choices(arrays: TraceArrays, prices: StepPrices) -> _Choices:
    rows = range(len(arrays.reply))
    shape = (len(rows), arrays.depth + 1)
    us, committed = np.empty(shape), np.empty(shape, dtype=np.int64)
    for depth in range(arrays.depth + 1):
        level = arrays.drafted(depth)
        committed[:, depth] = 1 + level.accepted.sum(axis=1)
        for row in rows:
            expert_rows = level.expert_row[row][level.accepted[row]]
            us[row, depth] = prices.step(np.array([row]), expert_rows, depth).us
    return _Choices(us, committed)
