"""A table as a prior: steps until a served search has settled near the best setting.

From nothing the search forces every length of a chain. With a table it forces two: the
fastest by the table's costs and by how often drafts were accepted on the prompts that
calibrate.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.claims.regret import BATCHES, long_replay
from benchmarks.claims.rivals import ServedSearch, chains
from benchmarks.claims.worlds import World
from evict_profile.replay.compare import MIXED, ScenarioReplay
from evict_profile.replay.policies import Fixed, PolicyStep
from evict_profile.stats import Floats
from evict_profile.table import CostTable
from evict_profile.traces import Trace

ORDERS, NEAR = 20, 0.98


@dataclass(frozen=True)
class Settled:
    """Over orders of replies: the median number of steps and quartiles, and how often
    the search was within 2 % of the best setting at the end of the run."""

    batch: int
    start: str
    forced: int
    steps: str
    near_at_end: str


def settling(world: World) -> Iterator[Settled]:
    for batch in BATCHES:
        replay = long_replay(world, MIXED, batch)
        arms = chains(replay.arrays.depth)
        true = np.array([replay.run(arm, 0).tokens_per_s for arm in arms])
        near = {
            arm.width
            for arm, v in zip(arms, true, strict=True)
            if v >= NEAR * true.max()
        }
        predicted = by_table(world.table, world.of(half=0), batch, arms)
        best_two = [arms[i] for i in sorted(np.argsort(-predicted)[:2])]
        for start, own in (("nothing", arms), ("the table, two lengths", best_two)):
            yield _settled(replay, start, own, near)


def by_table(
    table: CostTable, trace: Trace, batch: int, arms: Sequence[Fixed]
) -> Floats:
    """Tokens over time of each length, from costs and mean acceptance by level."""
    nodes, context = trace.nodes, float(trace.context.mean())
    accepted = np.bincount(nodes.depth, nodes.accepted) / len(trace)
    assert table.drafting, "chains were clocked"
    cost_us, clock = (
        table.step_cost_us(batch, context, "clamp"),
        table.drafting.at(batch),
    )
    us = [cost_us[batch * arm.width] + clock.overhead_us(arm.depth) for arm in arms]
    tokens = [1.0 + accepted[1 : 1 + arm.depth].sum() for arm in arms]
    found: Floats = np.array(tokens) / us
    return found


class _Watched:
    """A search that notes, step by step, whether it has settled near the best."""

    def __init__(self, arms: Sequence[Fixed], near: set[int]) -> None:
        self.search, self._near, self.is_near = ServedSearch(arms), near, list[bool]()
        self.name, self.depth = self.search.name, self.search.depth

    def begin(self, batch: int, context: float, nodes: int) -> PolicyStep:
        self._batch = batch
        return self.search.begin(batch, context, nodes)

    def observe(self, committed: int, step_us: float) -> None:
        self.search.observe(committed, step_us)
        choice = self.search.choice(self._batch)
        self.is_near.append(choice is not None and choice.width in self._near)


def _settled(
    replay: ScenarioReplay, start: str, arms: Sequence[Fixed], near: set[int]
) -> Settled:
    steps, ends = [], []
    for seed in range(ORDERS):
        watched = _Watched(arms, near)
        replay.run(watched, seed)
        first = int(np.argmax(watched.is_near))
        steps.append(first + 1.0 if any(watched.is_near) else np.inf)
        ends.append(watched.is_near[-1])
    low, middle, high = np.quantile(steps, [0.25, 0.5, 0.75], method="inverted_cdf")
    forced = len(arms) * ServedSearch.PASSES * ServedSearch.ROUNDS
    shown = f"{_count(middle)} ({_count(low)}..{_count(high)})"
    batch, share = replay.scenario.batch, f"{sum(ends)} of {ORDERS}"
    return Settled(batch, start, forced, shown, share)


def _count(steps: float) -> str:
    return f"{steps:.0f}" if np.isfinite(steps) else "never"
