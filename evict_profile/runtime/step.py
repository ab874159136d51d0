"""One step of decoding: levels are drafted while that pays, and then cut.

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

Each node is scored when its level comes, and each question is one sort and one scan of
the values known by then.
"""

import math
import sys
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray
from torch import from_numpy

from evict_profile.records import replace
from evict_profile.runtime import decision_cpu, scan
from evict_profile.runtime.calibration import Scoring
from evict_profile.runtime.checks import number
from evict_profile.runtime.decision import Rule
from evict_profile.runtime.history import History
from evict_profile.runtime.levels import GrowingTrees
from evict_profile.runtime.plan import Plan
from evict_profile.runtime.prices import NOTHING_BESIDE, FixedPrices, Prices
from evict_profile.stats import Floats

NO_LIMIT = sys.maxsize


class Basis(Struct, frozen=True):
    """What all steps of a truncator are decided with.

    Attributes:
        depth: levels to draft where that is fixed; None where it is decided.
    """

    rule: Rule
    prices: Prices | FixedPrices
    scoring: Scoring
    history: History
    depth: int | None


class DecodingStep:
    """A step of a batch, from its first level to its plan and what became of it.

    Made by `Truncator.begin`. On the host: a server that replays a fixed graph has a
    fixed depth. It is lossless wherever cutting by own scores is, since it reads less;
    for where that is not, no truncator can be made (docs/explanation/lossless.md).
    """

    _clock_us: Floats | None = None
    _plan: Plan | None = None

    def __init__(
        self, basis: Basis, batch: int, context: float, nodes: int | None
    ) -> None:
        """See `Truncator.begin`."""
        self._basis, self._batch = basis, batch
        self._pools = basis.rule.pools(batch)
        # Where requests have pools of their own, no costs are known beyond it.
        self._limit = NO_LIMIT if nodes is None or self._pools == batch else nodes
        self._costs, self._caveats, _ = basis.prices.at(
            batch, nodes, number("context", context)
        )
        self._terms = basis.history.terms(batch)

    @cached_property
    def _trees(self) -> GrowingTrees:
        return GrowingTrees(self._batch, self._basis.scoring)

    def deeper(self) -> bool:
        """Whether drafting another level is worth its time; a tie stops.

        False also where the table knows no deeper level. Before the first level past
        steps alone decide: ask that once a step, and plan and observe the step even if
        it drafts nothing.

        Raises:
            PlanError: the table has no time of drafting, or the calibration no
                per-rank acceptance.
        """
        level, basis = self._trees.levels, self._basis
        if basis.depth is not None:
            return level < basis.depth
        per_rank = basis.scoring.per_rank
        if self._clock_us is None:
            self._clock_us = self._terms.us + basis.prices.clock_us(self._batch)
        clock_us = self._clock_us
        if not level:
            plain_us = self._costs.item(0) + clock_us.item(0) - self._terms.us
            return not basis.history.skips(plain_us)
        if level >= len(clock_us) - 1:
            return False
        best = self._trees.with_children(per_rank)
        if best.shape[2] > self._limit:
            best.sort()
            best = best[:, :, -self._limit :].copy()
        best = best.reshape(2, self._pools, -1)
        best.sort()
        start, us = self._terms.start(self._batch), clock_us[level : level + 2]
        case, _, _ = scan.loops.best_size(best, self._costs, start, us, None)
        return bool(case)

    def extend(self, prob: ArrayLike, parent: ArrayLike | None = None) -> None:
        """Add the level that was drafted.

        Args:
            prob: floats [B, P, K], on the host: of the K children of P nodes, each
                given its parent, the most probable first; 0 where there is none.
            parent: int [B, P], the place of each family's parent in the level before,
                whose nodes count family after family. None at the first level, whose
                P is 1: all are the root's.

        Raises:
            PlanError: another shape or kind of numbers, what is no probability, or a
                parent out of range.
        """
        self._trees.grow(prob, parent)

    @property
    def worth(self) -> Floats:
        """Acceptance of each node so far, float64 [B, nodes]: level by level, family
        after family, siblings by rank; 0 for padding."""
        return self._trees.worth

    def plan(self) -> Plan:
        """Choose the nodes to verify, of those that `worth` tells of, in its order.

        Raises:
            TableError: more levels than were clocked, and that is refused.
        """
        worth, levels = self._trees.worth, self._trees.levels
        if worth.shape[1] <= self._limit:
            return self._choose(worth, levels)
        order = np.argsort(-worth, axis=1, kind="stable")
        best = np.sort(order[:, : self._limit], axis=1)
        plan = self._choose(np.take_along_axis(worth, best, axis=1), levels)
        keep = np.zeros(worth.shape, dtype=np.bool_)
        np.put_along_axis(keep, best, plan.keep.numpy(), axis=1)
        self._plan = replace(plan, keep=from_numpy(keep))
        return self._plan

    def plan_drafted(
        self,
        path_prob: NDArray[Any],
        depth: NDArray[Any] | None,
        parent: NDArray[Any] | None,
    ) -> Plan:
        """Choose among nodes that come all at once; see `Truncator.plan`."""
        scoring, worth = self._basis.scoring, None
        if scoring.calibration is not None:
            worth = scoring.on_cpu(path_prob, parent)
        levels = None if depth is None else int(depth.max(initial=0))
        return self._choose(path_prob, levels, worth)

    def observe(self, committed_tokens: int, step_us: float | None = None) -> None:
        """Tell how the planned step went; see `Truncator.observe`."""
        assert self._plan is not None, "plan a step before it is observed"
        self._basis.history.observe(self._plan, committed_tokens, step_us)

    def _choose(
        self,
        scores: NDArray[Any],
        levels: int | None,
        worth: Floats | None = None,
    ) -> Plan:
        """The plan among nodes of these scores [B, N], drafted so many levels deep."""
        basis, terms, beside = self._basis, self._terms, NOTHING_BESIDE
        if levels is not None:
            beside = basis.prices.beside(self._batch, levels)
            terms = terms.later(beside.us)
        keep, widths, k, claimed = decision_cpu.decide(
            scores, self._costs, basis.rule, terms, worth
        )
        includes = basis.prices.includes + beside.includes
        self._plan = Plan(
            from_numpy(widths),
            from_numpy(keep),
            self._batch + k * self._pools,
            claimed,
            self._costs.item(k) + beside.us if includes else math.nan,
            False,
            terms.trust,
            self._caveats + beside.caveats,
            includes,
        )
        return self._plan
