"""The truncator: a table, a rule, and what past steps taught, turned into plans."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from evict_profile.errors import PlanError
from evict_profile.lossless.rules import Acceptance, Combination, Drafts
from evict_profile.runtime import decision_gpu
from evict_profile.runtime.calibration import Calibration, Scoring
from evict_profile.runtime.checks import (
    lossless,
    number,
    of_trees,
    one_of,
    sizes,
    whole,
)
from evict_profile.runtime.decision import Allocation, Rule, Terms
from evict_profile.runtime.decision_gpu import CapturedDecision
from evict_profile.runtime.history import History
from evict_profile.runtime.plan import Plan
from evict_profile.runtime.prices import NOTHING_BESIDE, FixedPrices, Prices
from evict_profile.runtime.step import Basis, DecodingStep
from evict_profile.runtime.widths import as_numpy, check_shape
from evict_profile.table import OUTSIDES, CostTable, Outside

AnyObjective = Literal["ratio", "rate", "fixed"]


class Truncator:
    """Plans verification from a cost table, or at a fixed width, for one engine.

    Args:
        table: prices of this engine; "fixed" needs none.
        drafts: how drafted tokens are made: "topk", or "sampled" from the drafter.
        acceptance: "target-only", "match" or "rejection" (p/q); at temperature
            zero rejection is match.
        objective: "rate", throughput over the last steps and this one, which
            learns by `observe`; "ratio", the paper's rule for each step alone; or
            "fixed", the `width` - 1 nodes of each request that are worth most, of
            `depth` levels.
        width: tokens of a request, its root included; for "fixed" alone.
        depth: levels drafted; for "fixed" alone.
        allocation: "batch": nodes of all requests compete; "uniform": all
            requests verify equally many, as "fixed" does.
        ladder: totals (widths, when uniform) that the engine has captured, where
            the table was measured without captured graphs.
        calibration: from path probability to acceptance; "table" is the table's
            own, if it has one, and None believes the drafter.
        draft_us: time of a step that its price does not include. "rate" learns it
            from a clock, if `observe` is given one.
        outside: "refuse" what was not measured, or "clamp" to it and mark plans.

    Raises:
        PlanError: the rule would change the distribution of the output, or an
            argument cannot be used.
        ConfigError: `drafts` or `acceptance` is none of those.
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
        ladder: Sequence[int] | None = None,
        calibration: Calibration | Literal["table"] | None = "table",
        draft_us: float = 0.0,
        outside: Outside = "refuse",
    ) -> None:
        """See the class."""
        one_of("objective", objective, get_args(AnyObjective))
        one_of("outside", outside, OUTSIDES)
        # Whatever the objective, nodes are kept and cut by their own scores.
        lossless(Combination(drafts, acceptance, "ratio", "own"))
        if not isinstance(table, CostTable | None):
            raise PlanError(f"table {table!r} is none; give CostTable.load(path)")
        # The throughput of past steps and this one is a ratio, too.
        rule = Rule("ratio", "uniform" if objective == "fixed" else allocation)
        prices: Prices | FixedPrices
        if objective == "fixed":
            prices = FixedPrices(whole("width", width, least=1))
            depth = whole("depth", depth, least=0)
        else:
            priced_by = _table_alone(objective, table, width, depth)
            prices = Prices(priced_by, rule, sizes("ladder", ladder), outside)
        history = History(objective == "rate", number("draft_us", draft_us))
        scoring = Scoring(_calibration(calibration, table), table, depth)
        self._basis = Basis(rule, prices, scoring, history, depth)

    def plan(
        self,
        path_prob: Tensor,
        context: float,
        depth: Tensor | None = None,
        parent: Tensor | None = None,
    ) -> Plan:
        """Choose the nodes to verify in this step.

        Args:
            path_prob: floats [B, N], root excluded; nodes in any order in which a
                parent stands before a child of the same probability; padding is 0.
            context: tokens in a request's KV cache, mean over the batch.
            depth: int [B, N], of each node, 1 under the root, 0 for padding. Where the
                table knows the time of drafting, the price then holds the whole step:
                drafting to the deepest of these, and what is fixed.
            parent: int [B, N], index of each node's parent in its row, -1 under the
                root, anything for padding. With conditional acceptance nodes are
                scored by it. Nodes may still come in any order, as above.

        Raises:
            PlanError: probabilities, depths or parents that cannot be used (on a GPU,
                see `Plan`); or parents on a GPU where the table knows no depth.
            TableError: batch, context, tree or depth outside the table's domain (on a
                GPU a deeper level takes the time of the deepest known).
        """
        if isinstance(path_prob, Tensor) and path_prob.is_cuda:
            return self._plan_on_device(path_prob, context, depth, parent)
        shown = as_numpy(path_prob)
        of_trees(path_prob, depth, parent)
        batch, nodes = shown.shape
        return DecodingStep(self._basis, batch, context, nodes).plan_drafted(
            shown,
            depth if depth is None else depth.numpy(),
            parent if parent is None else parent.numpy(),
        )

    def begin(
        self, batch: int, context: float, nodes: int | None = None
    ) -> DecodingStep:
        """A step whose levels are scored as they are drafted; see `DecodingStep`.

        Args:
            batch: requests that decode together.
            context: tokens in a request's KV cache, mean over the batch.
            nodes: the most that a request can verify, its root excluded; of more that
                are drafted those worth most compete. None is all that are priced.

        Raises:
            PlanError: no size that is priced holds the batch.
            TableError: batch, context or tree outside the table's domain.
        """
        return DecodingStep(self._basis, batch, context, nodes)

    def observe(
        self, plan: Plan, committed_tokens: int, step_us: float | None = None
    ) -> None:
        """Tell how a planned step went, so that the next ones are decided with it.

        Args:
            plan: what was done; of a captured decision, before its next replay.
            committed_tokens: tokens that the batch gained, each request's own
                included, at least one a request.
            step_us: time of the whole step, drafting included; None takes the price. A
                plan whose price holds the whole step needs none.

        Raises:
            PlanError: more tokens than were verified, fewer than requests, or a time
                that is none.
        """
        self._basis.history.observe(plan, committed_tokens, step_us)

    def captured(
        self,
        batch: int,
        nodes: int,
        device: torch.device,
        by_depth: bool = False,
        by_parent: bool = False,
    ) -> CapturedDecision:
        """Buffers and operations for a CUDA graph that decides for B x N nodes.

        Before each replay call `price`, on the stream that replays. `by_depth` adds a
        buffer for depths, and `by_parent` one for parents, and reads them as `plan`
        does.

        Raises:
            TableError: batch or tree outside the table's domain.
            PlanError: no size holds the batch, or there is no conditional acceptance
                that parents are read for, or no depth is known to follow them to.
        """
        if by_parent and not self._basis.scoring.follows_parents:
            raise PlanError(
                "parents are read for conditional acceptance, and the calibration "
                "has none; measure it with: evict-profile calibrate, or leave "
                "by_parent off"
            )
        path_prob = torch.zeros(batch, nodes, device=device)
        zeros = torch.zeros(batch, nodes, dtype=torch.int64, device=device)
        depth = zeros if by_depth else None
        parent = zeros - 1 if by_parent else None
        return CapturedDecision(
            path_prob,
            self._basis.prices.sizes(batch, nodes),
            self._basis.rule,
            self._basis.scoring.on_device(device, parent),
            self._beside(depth),
            depth,
            parent,
        )

    def price(self, captured: CapturedDecision, context: float) -> Plan:
        """Ready a captured decision for the coming step.

        Returns the plan that the next replay writes: its tensors are the buffers of
        `captured`. They mean nothing before it, and the one after overwrites them.
        """
        batch, nodes = captured.path_prob.shape
        prices, device = self._basis.prices, captured.path_prob.device
        costs = prices.at(batch, nodes, number("context", context))
        terms = self._basis.history.terms(batch)
        captured.price(prices.on_device(batch, nodes, costs.context, device), terms)
        return self._plan_of(captured.decision, terms, costs.caveats, captured.depth)

    def _plan_on_device(
        self,
        path_prob: Tensor,
        context: float,
        depth: Tensor | None,
        parent: Tensor | None,
    ) -> Plan:
        check_shape(path_prob)
        of_trees(path_prob, depth, parent)
        batch, nodes = path_prob.shape
        prices, device = self._basis.prices, path_prob.device
        costs = prices.at(batch, nodes, number("context", context))
        terms = self._basis.history.terms(batch)
        made = decision_gpu.decide(
            path_prob,
            prices.on_device(batch, nodes, costs.context, device),
            self._basis.rule,
            decision_gpu.on_its_device(terms, device),
            self._basis.scoring.on_device(device, parent),
            self._beside(depth),
        )
        return self._plan_of(made, terms, costs.caveats, depth)

    def _plan_of(
        self,
        made: decision_gpu.Decision,
        terms: Terms,
        caveats: tuple[str, ...],
        depth: Tensor | None,
    ) -> Plan:
        """A plan of what a device decides, with what the host knows of it."""
        prices, beside = self._basis.prices, NOTHING_BESIDE
        if depth is not None:
            # How deep it is the device knows; the parts are the same.
            beside = prices.beside(len(depth), 0)
        return Plan(
            **made._asdict(),
            trust=terms.trust,
            caveats=caveats + beside.caveats,
            includes=prices.includes + beside.includes,
        )

    def _beside(self, depth: Tensor | None) -> decision_gpu.BesideByLevel | None:
        if depth is None:
            return None
        batch, nodes = depth.shape
        # So many levels a tree of so many nodes has at most.
        us = self._basis.prices.beside_on_device(batch, nodes, depth.device)
        return None if us is None else decision_gpu.BesideByLevel(depth, us)


def _table_alone(
    objective: str, table: CostTable | None, width: int | None, depth: int | None
) -> CostTable:
    """The table of an objective that decides width and depth by it."""
    if table is None or (width, depth) != (None, None):
        raise PlanError(
            f"objective {objective!r} needs a table and decides width and depth; "
            "give CostTable.load(path) alone, or objective='fixed' with both"
        )
    return table


def _calibration(
    given: Calibration | Literal["table"] | None, table: CostTable | None
) -> Calibration | None:
    if given == "table":
        measured = table.acceptance if table else None
        return Calibration.of(measured) if measured else None
    if given is not None and not isinstance(given, Calibration):
        raise PlanError(f"calibration {given!r} is none; give a Calibration")
    return given
