"""The truncator: a table, a rule, and what past steps taught, turned into plans."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor

from evict_profile.errors import PlanError
from evict_profile.lossless.rules import Acceptance, Combination, Drafts
from evict_profile.records import replace
from evict_profile.runtime import decision_cpu, decision_gpu
from evict_profile.runtime.calibration import Calibration, Scoring
from evict_profile.runtime.checks import lossless, number, of_trees, one_of, sizes
from evict_profile.runtime.decision import Allocation, Objective, Rule, Terms
from evict_profile.runtime.decision_gpu import CapturedDecision
from evict_profile.runtime.depth import DraftStep, needed
from evict_profile.runtime.history import History
from evict_profile.runtime.plan import Plan
from evict_profile.runtime.prices import NOTHING_BESIDE, Prices
from evict_profile.runtime.widths import as_numpy, check_shape, widths_of
from evict_profile.table import OUTSIDES, CostTable, Outside


class Truncator:
    """Plans verification from a cost table."""

    def __init__(
        self,
        table: CostTable,
        *,
        drafts: Drafts,
        acceptance: Acceptance,
        objective: Objective = "rate",
        allocation: Allocation = "batch",
        ladder: Sequence[int] | None = None,
        calibration: Calibration | Literal["table"] | None = "table",
        draft_us: float = 0.0,
        outside: Outside = "refuse",
    ) -> None:
        """A truncator for one engine.

        Args:
            table: prices of this engine.
            drafts: how drafted tokens are made: "topk", or "sampled" from the drafter.
            acceptance: "target-only", "match" or "rejection" (p/q); at temperature
                zero rejection is match.
            objective: "rate", throughput over the last steps and this one, which
                learns by `observe`; or "ratio", the paper's rule for each step alone.
            allocation: "batch": nodes of all requests compete; "uniform": all
                requests verify equally many.
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
        lossless(Combination(drafts, acceptance, objective, "own"))
        if not isinstance(table, CostTable):
            raise PlanError(f"table {table!r} is none; give CostTable.load(path)")
        if calibration == "table":
            measured = table.acceptance
            calibration = Calibration.of(measured) if measured else None
        if calibration is not None and not isinstance(calibration, Calibration):
            raise PlanError(f"calibration {calibration!r} is none; give a Calibration")
        one_of("outside", outside, OUTSIDES)
        # The throughput of past steps and this one is a ratio, too.
        self._rule = replace(Rule(objective, allocation), objective="ratio")
        self._history = History(objective == "rate", number("draft_us", draft_us))
        self._table = table
        self._prices = Prices(table, self._rule, sizes("ladder", ladder), outside)
        self._scoring = Scoring(calibration, table)

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
                calibration differs by depth it says which row serves a node. Where the
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
        check_shape(path_prob)
        of_trees(path_prob, depth, parent)
        if path_prob.is_cuda:
            return self._plan_on_device(path_prob, context, depth, parent)
        return self._plan_on_cpu(path_prob, context, depth, parent)

    def deeper(
        self,
        path_prob: Tensor,
        depth: Tensor,
        context: float,
        parent: Tensor | None = None,
    ) -> bool:
        """Whether drafting one more level is worth its time; see `runtime.depth`.

        Decided on the host: a server that replays a fixed graph has a fixed depth.
        It is lossless wherever cutting by own scores is, since it reads less; for
        where that is not, no truncator can be made (docs/explanation/lossless.md).

        Args:
            path_prob: floats [B, M], all nodes drafted so far, as `plan` takes them.
            depth: int [B, M], as `plan` takes it.
            context: tokens in a request's KV cache, mean over the batch.
            parent: int [B, M], as `plan` takes it.

        Returns:
            False also where the table knows no deeper level. Before the first level,
            where `depth` holds no node, past steps alone decide (`runtime.history`):
            ask that once a step, and plan and observe the step even if it is plain.

        Raises:
            PlanError: the table has no time of drafting, or the calibration no
                per-rank acceptance; or arguments that cannot be used.
            TableError: batch or context outside the table's domain.
        """
        check_shape(path_prob)
        of_trees(path_prob, depth, parent)
        if path_prob.is_cuda:
            raise PlanError(
                "depth is decided on the host; give path_prob.cpu() and depth.cpu()"
            )
        calibration, clock = needed(
            self._table, self._scoring.calibration, len(path_prob)
        )
        drafted, levels = as_numpy(path_prob), depth.numpy()
        decision_cpu.require_probabilities(drafted)
        costs = self._prices.widest(len(path_prob), number("context", context))
        if not levels.any():
            return not self._history.skips(costs.item(0) + clock.overhead_us(0))
        terms = self._history.terms(len(path_prob))
        step = DraftStep(costs, self._rule, terms, calibration.per_rank, clock)
        score, place = calibration.scoring(levels, _as_numpy(parent))
        return step.pays_deeper(score(drafted, place), levels)

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
        batch, tokens = len(plan.widths), int(plan.tokens)
        committed = number("committed_tokens", committed_tokens)
        if not batch <= committed <= tokens:
            raise PlanError(
                f"committed_tokens {committed:g} is not within {batch}..{tokens}: each "
                "request gains its own token, and no more than were verified"
            )
        if step_us is not None:
            step_us = number("step_us", step_us)
        if not plan.refused:
            self._history.observe(plan, committed, step_us)

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
        priced = self._prices.sizes(batch, nodes)
        calibrate = self._scoring.on_device(device)
        depth = torch.zeros(batch, nodes, dtype=torch.int64, device=device)
        read = self._depths(depth) if by_depth else None
        follow = None
        if by_parent:
            parent = torch.full_like(depth, -1)
            follow = self._scoring.parents(parent)
            if follow is None:
                raise PlanError(
                    "parents are read for conditional acceptance, and the calibration "
                    "has none; measure it with: evict-profile calibrate, or leave "
                    "by_parent off"
                )
        return CapturedDecision(
            batch, nodes, priced, self._rule, device, calibrate, read, follow
        )

    def price(self, captured: CapturedDecision, context: float) -> Plan:
        """Ready a captured decision for the coming step.

        Returns the plan that the next replay writes: its tensors are the buffers of
        `captured`. They mean nothing before it, and the one after overwrites them.
        """
        batch, nodes = captured.path_prob.shape
        place = (batch, nodes, number("context", context))
        caveats = self._prices.at(*place).caveats
        costs = self._prices.on_device(*place, captured.path_prob.device)
        terms = self._history.terms(batch)
        captured.price(costs, terms)
        nodes_known = (captured.depth, captured.parent)
        return self._plan_of(captured.decision, terms, caveats, *nodes_known)

    def _plan_on_cpu(
        self,
        path_prob: Tensor,
        context: float,
        depth: Tensor | None,
        parent: Tensor | None,
    ) -> Plan:
        batch, nodes = path_prob.shape
        costs, caveats = self._prices.at(batch, nodes, number("context", context))
        beside, terms = NOTHING_BESIDE, self._history.terms(batch)
        levels = _as_numpy(depth)
        if levels is not None:
            beside = self._prices.beside(batch, int(levels.max(initial=0)))
            terms = terms._replace(us=terms.us + beside.us)
        keep, k, claimed = decision_cpu.decide(
            as_numpy(path_prob),
            costs,
            self._rule,
            terms,
            *self._scoring.on_cpu(levels, _as_numpy(parent)),
        )
        return Plan(
            torch.from_numpy(widths_of(keep, k, self._rule)),
            torch.from_numpy(keep),
            batch + k * self._rule.pools(batch),
            claimed,
            costs.item(k) + beside.us,
            False,
            terms.trust,
            caveats + beside.caveats + self._scoring.caveats(depth, parent),
            self._includes(depth),
        )

    def _plan_on_device(
        self,
        path_prob: Tensor,
        context: float,
        depth: Tensor | None,
        parent: Tensor | None,
    ) -> Plan:
        batch, nodes = path_prob.shape
        place = (batch, nodes, number("context", context))
        terms, device = self._history.terms(batch), path_prob.device
        made = decision_gpu.decide(
            path_prob,
            self._prices.on_device(*place, device),
            self._rule,
            decision_gpu.on_its_device(terms, device),
            self._scoring.on_device(device),
            None if depth is None else self._depths(depth),
            None if parent is None else self._scoring.parents(parent),
        )
        caveats = self._prices.at(*place).caveats
        return self._plan_of(made, terms, caveats, depth, parent)

    def _plan_of(
        self,
        made: decision_gpu.Decision,
        terms: Terms,
        caveats: tuple[str, ...],
        depth: Tensor | None,
        parent: Tensor | None,
    ) -> Plan:
        """A plan of what a device decides, with what the host knows of it."""
        if depth is not None:
            caveats += self._prices.beside_on_device(len(depth), depth.device)[1]
        return Plan(
            **made._asdict(),
            trust=terms.trust,
            caveats=caveats + self._scoring.caveats(depth, parent),
            includes=self._includes(depth),
        )

    def _depths(self, depth: Tensor) -> decision_gpu.Depths:
        beside_us, _ = self._prices.beside_on_device(len(depth), depth.device)
        return self._scoring.depths(depth, beside_us)

    def _includes(self, depth: Tensor | None) -> tuple[str, ...]:
        whole = depth is not None and self._table.drafting is not None
        return self._table.includes + (("draft", "fixed") if whole else ())


def _as_numpy(numbers: Tensor | None) -> NDArray[Any] | None:
    return None if numbers is None else numbers.numpy()
