"""Baselines that know no cost, with the calibration that EVICT's rule has.

Each is the fastest of its kind on the prompts that calibrate, and is judged on the
others. A tree verifies its best nodes by the drafter's probabilities, or by the table's
conditional acceptance. A bare chain drafts the recorded trees and verifies the path of
best children, which needs no table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.claims.evict import Judged, judged, percent, plainly, rule
from benchmarks.claims.world import EVICT_DEPTH, EVICT_NODES, World
from evict_profile.acceptance import ConditionalAcceptance
from evict_profile.replay.compare import MIXED, ScenarioReplay
from evict_profile.replay.policies import (
    RATE_DEPTH,
    RATIO,
    Fixed,
    MakePolicy,
    Policy,
    PolicyStep,
    plain_decoding,
)
from evict_profile.replay.sums import Sums, tokens_per_s
from evict_profile.stats import Bools, Ints

BATCHES = (1, 4)
CHAIN = "bare chain"
WIDTHS = (2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32)


@dataclass(frozen=True)
class Row:
    """Speeds of a baseline over plain decoding and EVICT's tree, and of rules over it:
    EVICT's ratio, and rate and depth; both are calibrated."""

    batch: int
    baseline: str
    over_plain: str
    over_the_tree_of_32: str
    ratio_over_it: str
    rate_and_depth_over_it: str


@dataclass(frozen=True)
class BareChain:
    """The best child of each level's best child, `depth` tokens in all."""

    name: str
    depth: int

    def begin(self, batch: int, context: float, nodes: int) -> PolicyStep:
        return _ChainStep(batch)

    def observe(self, committed: int, step_us: float) -> None:
        """Learns nothing."""


class _ChainStep:
    def __init__(self, batch: int) -> None:
        self._last: Ints = np.zeros(batch, np.int64)
        self._kept: list[Bools] = [np.zeros((batch, 0), np.bool_)]

    def deeper(self) -> bool:
        return True

    def extend(self, prob: NDArray[Any], parent: Ints | None) -> None:
        batch, families, children = prob.shape
        above = np.zeros((batch, families), np.int64) if parent is None else parent
        # Padding has families of no probability, whose parent says nothing.
        grown = (above == self._last[:, None]) & (prob[:, :, 0] > 0.0)
        family, rows = grown.argmax(axis=1), np.arange(batch)
        kept = np.zeros((batch, families * children), np.bool_)
        kept[rows, family * children] = grown.any(axis=1)
        # A chain without a child ends; no place is -1, so nothing follows it.
        self._last = np.where(grown.any(axis=1), family * children, -1)
        self._kept.append(kept)

    def keep(self) -> Bools:
        return np.concatenate(self._kept, axis=1)


def rows(world: World) -> Iterator[Row]:
    """Trees have the nodes that EVICT drafts; a chain has those of the recording."""
    evicts = {"depth": EVICT_DEPTH, "nodes": EVICT_NODES}
    for batch in BATCHES:
        scenario = judged(world, MIXED, batch)
        sums = scenario.replay.sums
        rules = [sums(rule(world.table, name)) for name in (RATIO, RATE_DEPTH)]
        for label, policies in kinds(world).items():
            trees = {} if label == CHAIN else evicts
            before = world.replay(batch=batch, half=0, **trees)
            best = fastest(before, policies)
            own = world.replay(batch=batch, **trees).sums(always(best))
            yield _row(scenario, f"{label}: {setting(best)}", own, rules)


def always(policy: Policy) -> MakePolicy:
    """Of one that learns nothing, and so needs no copy."""
    return lambda: policy


def _row(scenario: Judged, name: str, own: Sums, rules: Sequence[Sums]) -> Row:
    replay = scenario.replay
    speed, ratio = tokens_per_s(own), replay.bootstrap.ratio
    plain = tokens_per_s(replay.sums(plain_decoding))
    return Row(
        replay.scenario.batch,
        name,
        plainly(ratio(speed / plain)),
        percent(ratio(speed / tokens_per_s(scenario.whole))),
        *(percent(ratio(tokens_per_s(each) / speed)) for each in rules),
    )


def kinds(world: World) -> dict[str, list[Policy]]:
    """Candidates of each kind of baseline."""
    known = world.table.acceptance
    assert known and known.conditional, "the recording has ranks"
    found, depths = dict[str, list[Policy]](), range(1, EVICT_DEPTH + 1)
    ranked_by: dict[str, ConditionalAcceptance | None] = {
        "drafter's ranks": None,
        "calibrated": known.conditional,
    }
    for ranks, conditional in ranked_by.items():
        found[f"width at depth {EVICT_DEPTH}, {ranks}"] = [
            Fixed("", EVICT_DEPTH, width, conditional) for width in WIDTHS
        ]
        found[f"depth and width, {ranks}"] = [
            Fixed("", depth, width, conditional) for depth in depths for width in WIDTHS
        ]
    found[CHAIN] = [BareChain("", depth) for depth in depths]
    return found


def fastest(replay: ScenarioReplay, policies: Sequence[Policy]) -> Policy:
    """In the first order of replies."""
    return max(policies, key=lambda policy: replay.run(policy, 0).tokens_per_s)


def setting(policy: Policy) -> str:
    return policy.setting if isinstance(policy, Fixed) else f"{policy.depth} drafts"
