"""Hindsight: what a policy would earn that knows what the target will accept.

It verifies accepted nodes alone and drafts no deeper than they reach. One request in a
dense trace has a fixed number of tokens to go, and each step leads to a known place:
so the shortest way to the end is found exactly, backwards from it. As far as more work
never costs less, no policy is faster.

A batch advances in lockstep, and a sparse trace does not say where a shorter step
leads. There the oracle picks in each step, for the whole batch, the depth of largest
tokens - rate * time, at the rate that it thereby earns (Dinkelbach, "On nonlinear
fractional programming", 1967). That is optimal if what follows does not depend on how
far a step went. It is a yardstick for policies that decide step by step, and no proven
bound.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evict_profile.replay.ground import Ground
from evict_profile.replay.prices import Prices
from evict_profile.replay.walk import Run, walk_with
from evict_profile.stats import Bools, Floats, Ints

CLOSE = 1e-6
"""Relative gain in rate under which another iteration teaches nothing."""


def oracle_run(ground: Ground, prices: Prices, batch: int, seed: int) -> Run:
    """The oracle's walk; see the module for when it is a bound."""
    if batch == 1 and ground.trace.dense:
        chooser = Planned(ground, shortest_depths(ground, prices))
        return walk_with(ground, chooser, prices, batch, seed)
    rate, run = 0.0, _greedy(ground, prices, batch, seed, 0.0)
    while run.tokens_per_s > rate * (1.0 + CLOSE):
        rate = run.tokens_per_s
        better = _greedy(ground, prices, batch, seed, rate / 1e6)
        run = max(run, better, key=lambda each: each.tokens_per_s)
    return run


def _greedy(
    ground: Ground, prices: Prices, batch: int, seed: int, rate_per_us: float
) -> Run:
    return walk_with(ground, Greedy(ground, prices, rate_per_us), prices, batch, seed)


@dataclass(frozen=True)
class Planned:
    """Depths fixed beforehand, one a step, for one request."""

    ground: Ground
    depth: Ints

    def choose(self, rows: Ints) -> tuple[int, Bools]:
        """What will be accepted, down to the planned depth."""
        depth = int(self.depth[rows[0]])
        return depth, self.ground.drafted(depth).accepted[rows]

    def observe(self, committed: int, step_us: float) -> None:
        """Knew it."""


@dataclass(frozen=True)
class Greedy:
    """The depth of largest tokens - rate * time in each step."""

    ground: Ground
    prices: Prices
    rate_per_us: float

    def choose(self, rows: Ints) -> tuple[int, Bools]:
        """Of the first that is best, all that will be accepted."""
        return max(
            (self._kept(rows, depth) for depth in range(self.ground.depth + 1)),
            key=lambda choice: self._worth(rows, *choice),
        )

    def observe(self, committed: int, step_us: float) -> None:
        """Knew it."""

    def _kept(self, rows: Ints, depth: int) -> tuple[int, Bools]:
        return depth, self.ground.drafted(depth).accepted[rows]

    def _worth(self, rows: Ints, depth: int, kept: Bools) -> float:
        places = self.ground.drafted(depth).place[rows][kept]
        committed = np.minimum(1 + kept.sum(axis=1), self.ground.left[rows])
        us = self.prices.step(rows, places, depth).us
        return float(committed.sum()) - self.rate_per_us * us


class _Choices(NamedTuple):
    """Each step drafted to each depth, [steps, depths]; infinite where no better."""

    us: Floats
    committed: Ints


def shortest_depths(ground: Ground, prices: Prices) -> Ints:
    """Depth of each step on the fastest way to its reply's end, int64 [steps]."""
    choices = _choices(ground, prices)
    best = np.zeros(len(ground.reply), dtype=np.int64)
    to_go_us = np.zeros(len(ground.reply) + 1)
    for row in range(len(best) - 1, -1, -1):
        end = ground.end[ground.reply[row]]
        ahead = row + choices.committed[row]
        after_us = np.where(ahead < end, to_go_us[np.minimum(ahead, end)], 0.0)
        way_us = choices.us[row] + after_us
        best[row] = way_us.argmin()
        to_go_us[row] = way_us.min()
    return best


def _choices(ground: Ground, prices: Prices) -> _Choices:
    rows = range(len(ground.reply))
    shape = (len(rows), ground.depth + 1)
    us, committed = np.empty(shape), np.empty(shape, dtype=np.int64)
    for depth in range(ground.depth + 1):
        level = ground.drafted(depth)
        committed[:, depth] = 1 + level.accepted.sum(axis=1)
        for row in rows:
            places = level.place[row][level.accepted[row]]
            us[row, depth] = prices.step(np.array([row]), places, depth).us
    return _Choices(us, committed)
