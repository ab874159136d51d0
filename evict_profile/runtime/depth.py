"""Whether drafting one more level is worth its time.

Before a level is drafted nobody knows its scores. But how often a child of each rank
is accepted where its parent is was measured, and the parents' own acceptance is known.
So the level that would follow is expected to hold, for each of the best nodes of the
deepest level, children that are worth the parent's acceptance times that share; parents
are as many as their children that were measured, as EAGLE-2 and -3 draft. The best
reachable value of what is maximised is then compared without that level and with it:
more candidates against the time of drafting them.

One level is looked at. A level that pays only together with the one after it is
not drafted; looking six ahead gains 0.3 % at the most (docs/research/truncation.md),
since levels cost alike and bring less and less. Of the first level nothing is known but
what past steps tell: `runtime.history` decides there.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evict_profile.errors import PlanError
from evict_profile.runtime import decision_cpu
from evict_profile.runtime.calibration import Calibration
from evict_profile.runtime.decision import Rule, Terms
from evict_profile.stats import Floats
from evict_profile.table import CostTable, DraftClock


class DraftStep(Struct, frozen=True):
    """A step that is being drafted.

    Attributes:
        costs: of verifying k nodes a pool, for all k that are priced.
        rule, terms: what is maximised.
        per_rank: acceptance of a child by rank where its parent is accepted.
        clock: time beside verification, by level.
    """

    costs: Floats
    rule: Rule
    terms: Terms
    per_rank: Sequence[float]
    clock: DraftClock

    def pays_deeper(self, worth: Floats, depth: NDArray[Any]) -> bool:
        """Whether a further level beats stopping; a tie stops, and so does the last.

        Args:
            worth: acceptance of each node drafted so far, [B, M].
            depth: depth of each, [B, M].
        """
        deepest = int(depth.max(initial=0))
        if deepest >= self.clock.max_depth:
            return False
        frontier = np.where(depth == deepest, worth, 0.0)
        further = expected_children(frontier, self.per_rank)
        grown = np.concatenate([worth, further], axis=1)
        return self.value(grown, deepest + 1) > self.value(worth, deepest)

    def value(self, worth: Floats, level: int) -> float:
        """The best value over all sets of these nodes, drafted down to a level."""
        us = self.terms.us + self.clock.overhead_us(level)
        terms = self.terms._replace(us=us)
        return decision_cpu.best_score(worth, self.costs, self.rule, terms)


def expected_children(frontier: Floats, per_rank: Sequence[float]) -> Floats:
    """What the children of a level's best nodes are expected to be worth, [B, ...].

    `frontier` [B, M] is 0 where a node is not of that level, or padding.
    """
    shares = np.array(per_rank)
    topk = min(len(shares), frontier.shape[1])
    parents = np.sort(frontier, axis=1)[:, -topk:]
    children: Floats = parents[:, :, None] * shares
    return children.reshape(len(frontier), -1)


def needed(
    table: CostTable, calibration: Calibration | None, batch: int
) -> tuple[Calibration, DraftClock]:
    """What a decision on depth rests on: the calibration, and the batch's clock.

    Raises:
        PlanError: the time of drafting or acceptance per rank was not measured.
    """
    drafting = table.drafting
    if drafting is None or calibration is None or not calibration.per_rank:
        lacks = "no time of drafting" if drafting is None else "no acceptance per rank"
        raise PlanError(
            f"{table.path}: {lacks} is known, so that the worth of a further level is "
            "not; measure it with: evict-profile calibrate"
        )
    return calibration, drafting.at(batch)
