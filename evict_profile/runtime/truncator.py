"""The truncator: a table, a rule, and what past steps taught, turned into plans."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from evict_profile.errors import PlanError
from evict_profile.lossless.rules import Acceptance, Combination, Drafts, classify
from evict_profile.runtime import on_cpu, on_device
from evict_profile.runtime.calibration import Calibration
from evict_profile.runtime.captured import CapturedDecision
from evict_profile.runtime.checks import number, one_of, sizes
from evict_profile.runtime.decision import Allocation, Objective, Rule, Terms
from evict_profile.runtime.past import Past
from evict_profile.runtime.plan import Plan
from evict_profile.runtime.prices import Prices
from evict_profile.runtime.table import OUTSIDES, CostTable, Outside
from evict_profile.runtime.widths import as_numpy, check_shape, widths_of


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
        calibration: Calibration | None = None,
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
            calibration: from path probability to acceptance.
            draft_us: time of a step that the table does not include. "rate" learns it
                from a clock, if `observe` is given one.
            outside: "refuse" what was not measured, or "clamp" to it and mark plans.

        Raises:
            PlanError: the rule would change the distribution of the output, or an
                argument cannot be used.
            ConfigError: `drafts` or `acceptance` is none of those.
        """
        _refuse_bias(Combination(drafts, acceptance, objective, "own"))
        if not isinstance(table, CostTable):
            raise PlanError(f"table {table!r} is none; give CostTable.load(path)")
        if calibration is not None and not isinstance(calibration, Calibration):
            raise PlanError(f"calibration {calibration!r} is none; give a Calibration")
        one_of("outside", outside, OUTSIDES)
        # The throughput of past steps and this one is a ratio, too.
        self._rule = replace(Rule(objective, allocation), objective="ratio")
        self._learns = objective == "rate"
        self._draft_us = number("draft_us", draft_us)
        self._pasts: dict[str, Past] = {}
        self._prices = Prices(table, self._rule, sizes("ladder", ladder), outside)
        self._calibration = calibration
        self._calibrate_on = lru_cache(None)(
            lambda device: calibration.on_device(device) if calibration else None
        )

    def plan(self, path_prob: Tensor, context: float, group: str = "") -> Plan:
        """Choose the nodes to verify in this step.

        Args:
            path_prob: floats [B, N], root excluded; nodes in any order in which a
                parent stands before a child of the same probability; padding is 0.
            context: tokens in a request's KV cache, mean over the batch.
            group: requests alike, whose past steps teach each other: a workload, not
                a request.

        Raises:
            PlanError: probabilities that cannot be used (on a GPU, see `Plan`).
            TableError: batch, context or tree outside the table's domain.
        """
        check_shape(path_prob)
        batch, nodes = path_prob.shape
        place = (batch, nodes, number("context", context))
        costs, marks = self._prices.at(*place)
        terms = self._terms(batch, group)
        if path_prob.is_cuda:
            device = path_prob.device
            there = self._prices.on_device(*place, device)
            terms_there = on_device.on_its_device(terms, device)
            calibrate = self._calibrate_on(device)
            made = on_device.decide(
                path_prob, there, self._rule, terms_there, calibrate
            )
            return Plan(**made._asdict(), trust=terms.trust, group=group, marks=marks)
        own = self._calibration.on_cpu if self._calibration else None
        keep, k, claimed = on_cpu.decide(
            as_numpy(path_prob), costs, self._rule, terms, own
        )
        return Plan(
            torch.from_numpy(widths_of(keep, k, self._rule)),
            torch.from_numpy(keep),
            batch + k * self._rule.pools(batch),
            claimed,
            costs.item(k),
            False,
            terms.trust,
            group,
            marks,
        )

    def observe(
        self, plan: Plan, committed_tokens: int, step_us: float | None = None
    ) -> None:
        """Tell how a planned step went, so that the next ones are decided with it.

        Args:
            plan: what was done; of a captured decision, before its next replay.
            committed_tokens: tokens that the batch gained, each request's own
                included, at least one a request.
            step_us: time of the whole step, drafting included; None takes the price.

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
        if plan.refused:
            return
        self._past(plan.group).observe(
            batch,
            committed - batch,
            float(plan.claimed),
            float(plan.step_cost_us),
            step_us,
        )

    def captured(
        self, batch: int, nodes: int, device: torch.device, fused: bool = False
    ) -> CapturedDecision:
        """Buffers and operations for a CUDA graph that decides for B x N nodes.

        Before each replay call `price`, on the stream that replays. `fused` takes
        Triton kernels in place of tensor operations; which is faster has not been
        measured on a GPU yet.

        Raises:
            TableError: batch or tree outside the table's domain.
            PlanError: no size holds the batch, or `fused` cannot be had.
        """
        priced = self._prices.sizes(batch, nodes)
        calibrate = self._calibrate_on(device)
        return CapturedDecision(
            batch, nodes, priced, self._rule, device, calibrate, fused
        )

    def price(
        self, captured: CapturedDecision, context: float, group: str = ""
    ) -> Plan:
        """Ready a captured decision for the coming step.

        Returns the plan that the next replay writes: its tensors are the buffers of
        `captured`. They mean nothing before it, and the one after overwrites them.
        """
        batch, nodes = captured.path_prob.shape
        place = (batch, nodes, number("context", context))
        marks = self._prices.at(*place).marks
        costs = self._prices.on_device(*place, captured.path_prob.device)
        terms = self._terms(batch, group)
        captured.price(costs, terms)
        made = captured.decision._asdict()
        return Plan(**made, trust=terms.trust, group=group, marks=marks)

    def _terms(self, batch: int, group: str) -> Terms:
        if self._learns:
            return self._past(group).terms(batch)
        return Terms(us=self._draft_us)

    def _past(self, group: str) -> Past:
        if group not in self._pasts:
            self._pasts[group] = Past(self._draft_us)
        return self._pasts[group]


def _refuse_bias(combination: Combination) -> None:
    verdict = classify(combination)
    if not verdict.lossless:
        raise PlanError(
            f"{combination} would change what the model says. {verdict.why} Lossless "
            "is this with target-only acceptance, or a fixed width; of rules that read "
            f"scores, {verdict.instead}"
        )
