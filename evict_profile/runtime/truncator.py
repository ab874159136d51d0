"""Plans of verification from a table, a rule and past steps.

A level is drafted where the best value with it, of children accepted as often as known
by rank, is above the best value without it. Looking six levels ahead gains at most 0.3
% (docs/research/measurements.md).
"""

import math
import sys
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from evict_profile.errors import ConfigError
from evict_profile.lossless import Acceptance, Combination, Drafts, classify
from evict_profile.runtime import checks, decision
from evict_profile.runtime.costs import (
    ALLOCATIONS,
    Allocation,
    CostCache,
    FixedCosts,
    Overhead,
    pools_of,
)
from evict_profile.runtime.decision import History, Plan, Terms
from evict_profile.runtime.learning import Learner
from evict_profile.runtime.scoring import Calibration, GrowingTrees, clip_to_parents
from evict_profile.stats import Floats
from evict_profile.table import OUTSIDES, CostTable, Outside

AnyObjective = Literal["ratio", "rate", "fixed"]

LEAST_US = 1e-3
"""Of a time that was observed."""


class Rules(NamedTuple):
    costs: CostCache | FixedCosts
    history: History
    calibration: Calibration | None = None
    allocation: Allocation = "batch"

    def observe(
        self, plan: Plan, committed: int, step_us: float | None, verify_us: float | None
    ) -> None:
        self.history.observe(plan, committed, step_us)
        if verify_us is not None:
            verify_us = checks.number("verify_us", verify_us, LEAST_US)
            self.costs.observe(plan.place, plan.tokens, verify_us)


class Truncator:
    """Plans verification from a cost table, or at a fixed width, for one engine.

    Args:
        table: costs of this engine; "fixed" needs none.
        drafts: "topk", or "sampled" from the drafter.
        acceptance: "target-only", "match" or "rejection" (p/q); at temperature zero
            rejection is match.
        objective: "rate" maximises throughput over past steps and this one, "ratio"
            (EVICT) that of this step; "fixed" keeps the best `width` - 1 nodes.
        width: tokens of a request, its root included; for "fixed" alone.
        depth: levels drafted; for "fixed" alone.
        allocation: "batch": nodes of all requests compete; "uniform": all requests
            verify equally many, as "fixed" does.
        capture_sizes: captured totals (widths, when uniform) of an engine whose table
            was measured without captured graphs.
        calibration: "table" is the table's own, if any; `None` uses the drafter's
            probabilities unchanged.
        draft_us: time of a step that its cost does not include; "rate" learns it from
            the times given to `observe`.
        outside: "refuse" what was not measured, or "clamp" to it and mark plans.

    Raises:
        ConfigError: an unusable argument, or a rule that changes the output's
            distribution.
    """

    def __init__(
        self,
        table: CostTable | None = None,
        *,
        drafts: Drafts,
        acceptance: Acceptance,
        objective: AnyObjective = "rate",
        width: int | None = None,
        depth: int | None = None,
        allocation: Allocation = "batch",
        capture_sizes: Sequence[int] | None = None,
        calibration: Calibration | Literal["table"] | None = "table",
        draft_us: float = 0.0,
        outside: Outside = "refuse",
    ) -> None:
        checks.one_of("objective", objective, get_args(AnyObjective))
        checks.one_of("allocation", allocation, ALLOCATIONS)
        checks.one_of("outside", outside, OUTSIDES)
        _require_lossless(drafts, acceptance)
        if not isinstance(table, CostTable | None):
            raise ConfigError(f"table {table!r} is none; give CostTable.load(path)")
        costs: CostCache | FixedCosts
        if objective == "fixed":
            allocation = "uniform"
            width = checks.whole("width", width, least=1)
            costs = FixedCosts(width, checks.whole("depth", depth, least=0))
        elif table is None or (width, depth) != (None, None):
            raise ConfigError(
                f"objective {objective!r} needs a table and decides width and depth; "
                "give CostTable.load(path) alone, or objective='fixed' with both"
            )
        else:
            captured = checks.sizes("capture_sizes", capture_sizes)
            costs = CostCache(table, allocation, captured, outside)
        history = History(objective == "rate", checks.number("draft_us", draft_us))
        own = _calibration(calibration, table)
        self._rules = Rules(costs, history, own, allocation)

    def plan(
        self,
        path_prob: Tensor,
        context: float,
        depth: Tensor | None = None,
        parent: Tensor | None = None,
    ) -> Plan:
        """Choose the nodes to verify in this step, on the host.

        Args:
            path_prob: floats [B, N], root excluded; parents before children of the same
                probability; padding is 0.
            context: tokens in a request's KV cache, mean over the batch.
            depth: int [B, N], 1 under the root, 0 for padding; adds the time of
                drafting to the cost where the table knows it.
            parent: int [B, N], index in its row of each node's parent, less than its
                own; -1 under the root. Conditional acceptance needs it.

        Raises:
            ConfigError: probabilities, depths or parents that cannot be used.
            DataError: batch, context, tree or depth outside the table's domain.
        """
        shown = checks.host_floats(path_prob)
        depths = checks.host_ints("depth", depth, shown.shape)
        parents = checks.host_ints("parent", parent, shown.shape)
        if parents is not None:
            shown = clip_to_parents(shown, parents)
        batch, nodes = shown.shape
        levels = None if depths is None else int(depths.max(initial=0))
        return self.begin(batch, context, nodes).plan_drafted(shown, levels, parents)

    def begin(
        self, batch: int, context: float, nodes: int | None = None
    ) -> "DecodingStep":
        """A step whose levels are scored as they are drafted.

        Args:
            batch: requests that decode together.
            context: tokens in a request's KV cache, mean over the batch.
            nodes: most nodes a request can verify; None is all that are covered.

        Raises:
            ConfigError: no size that is covered holds the batch.
            DataError: batch, context or tree outside the table's domain.
        """
        return DecodingStep(self._rules, batch, context, nodes)

    def observe(
        self,
        plan: Plan,
        committed_tokens: int,
        step_us: float | None = None,
        verify_us: float | None = None,
    ) -> None:
        """Learn how a planned step went.

        Args:
            plan: the plan of the step.
            committed_tokens: tokens that the batch gained, at least one a request.
            step_us: time of the whole step, drafting included; None takes the cost.
            verify_us: time of the target's forward alone, from which the costs of the
                next steps are corrected (`evict_profile.runtime.learning`). Without
                it the table stays as it is, and equal steps give equal plans.

        Raises:
            ConfigError: more tokens than verified, fewer than requests, or no valid
                time.
        """
        self._rules.observe(plan, committed_tokens, step_us, verify_us)

    @property
    def learner(self) -> Learner | None:
        """What was learnt from verifications; None at a fixed width."""
        costs = self._rules.costs
        return None if isinstance(costs, FixedCosts) else costs.learner

    def forward_us(self, plan: Plan) -> float:
        """The table's cost of a plan's verification, whatever was learnt since.

        Raises:
            ConfigError: a fixed width has no costs.
        """
        costs = self._rules.costs
        if isinstance(costs, FixedCosts):
            raise ConfigError("a fixed width has no costs; plan from a table")
        return costs.forward_us(plan.place, plan.tokens)


class DecodingStep:
    """A step of a batch, from its first level to its outcome; on the host."""

    _plan: Plan | None = None
    _trees: GrowingTrees | None = None

    def __init__(
        self, rules: Rules, batch: int, context: float, nodes: int | None
    ) -> None:
        if batch < 1:
            raise ConfigError(f"a batch of {batch} has no request; give at least 1")
        self._rules, self._batch = rules, batch
        self._pools = pools_of(rules.allocation, batch)
        # Where requests have pools of their own, no costs are known beyond it.
        limited = nodes is not None and self._pools != batch
        self._limit = nodes if limited and nodes is not None else sys.maxsize
        context = checks.number("context", context)
        at = rules.costs.at(batch, nodes, context)
        self._costs, self._caveats, self._place = at
        self._terms = rules.history.terms(batch)

    def _begin_trees(self) -> GrowingTrees:
        """Where they are first needed; a cached property would take a lock."""
        self._trees = GrowingTrees(self._batch, self._rules.calibration)
        return self._trees

    def deeper(self) -> bool:
        """Whether another level raises the expected throughput; a tie stops.

        Ask once a step; plan and observe the step even if it drafts nothing.

        Raises:
            ConfigError: the table has no time of drafting or no per-rank acceptance.
        """
        trees = self._trees or self._begin_trees()
        level, (costs, history, calibration, _) = trees.levels, self._rules
        if isinstance(costs, FixedCosts):
            return level < costs.depth
        if not (calibration and calibration.per_rank):
            raise costs.not_measured("no acceptance per rank")
        clock_us = costs.clock_us(self._batch)
        if costs.forced is not None:
            return level < len(clock_us) - 1
        if not level:
            plain_us = self._costs.item(0) + clock_us[0]
            return not history.backoff.should_skip(plain_us)
        if level >= len(clock_us) - 1:
            return False
        terms = self._terms
        return trees.another_pays(
            calibration.rank_chances, self._costs, terms.base_tokens(self._batch),
            terms.us + clock_us[level], terms.us + clock_us[level + 1],
            self._limit, self._pools,
        )  # fmt: skip

    def extend(self, prob: ArrayLike, parent: ArrayLike | None = None) -> None:
        """Add the level that was drafted.

        Args:
            prob: floats [B, P, K], on the host: of the K children of P nodes, each
                given its parent, the most probable first; 0 for padding.
            parent: int [B, P], each family's parent in the level before; None at level
                1.

        Raises:
            ConfigError: other shapes, no probabilities, or parents out of range.
        """
        (self._trees or self._begin_trees()).grow(prob, parent)

    @property
    def levels(self) -> int:
        """Levels that were drafted."""
        return self._trees.levels if self._trees else 0

    @property
    def last_plan(self) -> Plan:
        assert self._plan is not None, "plan a step before its plan is read"
        return self._plan

    @property
    def scores(self) -> Floats:
        """Acceptance of each node, float64 [B, nodes]: level by level, family after
        family, siblings by rank; 0 for padding."""
        return (self._trees or self._begin_trees()).scores

    def plan(self) -> Plan:
        """Choose the nodes to verify, in the order of `scores`.

        Raises:
            DataError: the time of so many levels was not measured, and that is refused.
        """
        trees = self._trees or self._begin_trees()
        scores, levels = trees.scores, trees.levels
        if scores.shape[1] <= self._limit:
            return self._choose(np.ascontiguousarray(scores), levels)
        order = np.argsort(-scores, axis=1, kind="stable")
        best = np.sort(order[:, : self._limit], axis=1)
        plan = self._choose(np.take_along_axis(scores, best, axis=1), levels)
        keep = np.zeros(scores.shape, dtype=np.bool_)
        np.put_along_axis(keep, best, plan.host_keep, axis=1)
        self._plan = replace(plan, host_keep=keep)
        return self._plan

    def plan_drafted(
        self,
        path_prob: NDArray[Any],
        levels: int | None,
        parent: NDArray[Any] | None,
    ) -> Plan:
        """Choose among nodes that come all at once; parents are not checked."""
        shown: Floats = np.ascontiguousarray(path_prob, np.float64)
        calibration = self._rules.calibration
        if calibration is None:
            return self._choose(shown, levels)
        return self._choose(calibration.on_cpu(shown, parent), levels, shown)

    def observe(
        self,
        committed_tokens: int,
        step_us: float | None = None,
        verify_us: float | None = None,
    ) -> None:
        """As `Truncator.observe`, of this step's plan."""
        assert self._plan is not None, "plan a step before it is observed"
        self._rules.observe(self._plan, committed_tokens, step_us, verify_us)

    def regret(self) -> float:
        """What deciding by the table uncorrected would lose, over the step's tokens.

        A choice has its expected tokens less its learnt cost at the rate of the best
        one; no other choice has more (W. Dinkelbach, 1967).
        """
        (scores, pools, terms, ties), us = self._asked, self._costs
        table_us = self._rules.costs.of_table(self._place)
        (*_, k, best), (*_, other_k, other) = (
            decision.decide(scores, each, pools, terms, ties) for each in (us, table_us)
        )
        rate = (terms.base_tokens(len(scores)) + best) / (terms.us + us.item(k))
        lost = best - other - rate * (us.item(k) - us.item(other_k))
        return max(lost, 0.0) / (len(scores) / terms.acceptance_ratio + best)

    def _choose(
        self, scores: Floats, levels: int | None, ties: Floats | None = None
    ) -> Plan:
        """The plan among nodes of these scores [B, N], drafted so many levels deep."""
        costs, terms, overhead = self._rules.costs, self._terms, Overhead()
        if levels is not None:
            overhead = costs.overhead(self._batch, levels)
            us = terms.us + overhead.us
            terms = Terms(terms.acceptance_ratio, terms.tokens, us)
        self._asked = scores, self._pools, terms, ties
        keep, widths, k, expected = decision.decide(
            scores, costs.to_decide(self._costs), self._pools, terms, ties
        )
        includes = costs.includes + overhead.includes
        self._plan = Plan(
            widths,
            keep,
            self._batch + k * self._pools,
            expected,
            self._costs.item(k) + overhead.us if includes else math.nan,
            terms.acceptance_ratio,
            self._caveats + overhead.caveats,
            self._place,
            includes,
        )
        return self._plan


def _require_lossless(drafts: Drafts, acceptance: Acceptance) -> None:
    # Whatever the objective, nodes are kept and cut by their own scores.
    combination = Combination(drafts, acceptance, "ratio", "own")
    verdict = classify(combination)
    if not verdict.lossless:
        raise ConfigError(
            f"{combination} would change what the model says. {verdict.why} Lossless "
            "is this with target-only acceptance, or a fixed width; of rules that read "
            f"scores, {verdict.instead}"
        )


def _calibration(
    given: Calibration | Literal["table"] | None, table: CostTable | None
) -> Calibration | None:
    if given == "table":
        measured = table.acceptance if table else None
        return Calibration.of(measured) if measured else None
    if given is not None and not isinstance(given, Calibration):
        raise ConfigError(f"calibration {given!r} is none; give a Calibration")
    return given
