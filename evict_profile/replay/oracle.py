"""The oracle knows which nodes the target accepts, and verifies and drafts no others.

For one request in a dense trace, the fastest path to the reply's end is found exactly
by backward recursion: a bound, if more work never costs less. Otherwise the oracle
chooses for the whole batch the depth of largest tokens - rate * time, at the rate that
this reaches (Dinkelbach, "On nonlinear fractional programming", 1967): no proven bound.
"""

import numpy as np

from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.simulate import ReplayRun, StepTimes, simulate_decisions
from evict_profile.stats import Bools, Ints

CLOSE = 1e-6
"""Relative gain in rate under which the iteration ends."""


def oracle_run(
    arrays: TraceArrays, costs: StepTimes, batch: int, seed: int
) -> ReplayRun:
    if batch == 1 and arrays.trace.dense:
        depths = shortest_depths(arrays, costs)

        def decide(rows: Ints) -> tuple[int, Bools]:
            depth = int(depths[rows[0]])
            return depth, arrays.drafted(depth).accepted[rows]

        return simulate_decisions(arrays, decide, costs, batch, seed)
    rate, run = 0.0, _greedy_run(arrays, costs, batch, seed, 0.0)
    while run.tokens_per_s > rate * (1.0 + CLOSE):
        rate = run.tokens_per_s
        better = _greedy_run(arrays, costs, batch, seed, rate / 1e6)
        run = max(run, better, key=lambda each: each.tokens_per_s)
    return run


def _greedy_run(
    arrays: TraceArrays, costs: StepTimes, batch: int, seed: int, rate_per_us: float
) -> ReplayRun:
    def worth(rows: Ints, depth: int) -> float:
        trees = arrays.drafted(depth)
        kept = trees.accepted[rows]
        committed = np.minimum(1 + kept.sum(axis=1), arrays.tokens_left[rows])
        us = costs.step(rows, trees.expert_row[rows][kept], depth).us
        return float(committed.sum()) - rate_per_us * us

    def decide(rows: Ints) -> tuple[int, Bools]:
        depth = max(range(arrays.depth + 1), key=lambda depth: worth(rows, depth))
        return depth, arrays.drafted(depth).accepted[rows]

    return simulate_decisions(arrays, decide, costs, batch, seed)


def shortest_depths(arrays: TraceArrays, costs: StepTimes) -> Ints:
    """Depth of each step on the fastest path to its reply's end, int64 [steps]."""
    best = np.zeros(len(arrays.reply), dtype=np.int64)
    to_go_us = np.zeros(len(arrays.reply))
    for row in range(len(best) - 1, -1, -1):
        way_us = np.zeros(arrays.depth + 1)
        for depth in range(arrays.depth + 1):
            trees, one = arrays.drafted(depth), np.array([row])
            kept = trees.accepted[row]
            ahead = arrays.next_rows(one, np.array([1 + int(kept.sum())]))[0]
            cost = costs.step(one, trees.expert_row[row][kept], depth)
            way_us[depth] = cost.us + (to_go_us[ahead] if ahead >= 0 else 0.0)
        best[row], to_go_us[row] = way_us.argmin(), way_us.min()
    return best
