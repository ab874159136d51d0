"""The truncator: a table, a rule, and what past steps taught, turned into plans."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from evict_profile.errors import PlanError
from evict_profile.lossless.rules import Acceptance, Combination, Drafts, classify
from evict_profile.runtime import on_cpu, on_device
from evict_profile.runtime.calibration import Calibration
from evict_profile.runtime.captured import CapturedDecision
from evict_profile.runtime.decision import Allocation, Objective, Rule, Terms
from evict_profile.runtime.past import Past
from evict_profile.runtime.prices import Prices
from evict_profile.runtime.table import CostTable, Outside
from evict_profile.runtime.widths import as_numpy, check_shape, widths_of


class Plan(NamedTuple):
    """Which nodes are verified, and what that is expected to bring and to cost.

    On a GPU the numbers are tensors; `float(...)` reads one, and waits for it.

    Attributes:
        widths: int64 [B], tokens of each request, its root included.
        keep: bool [B, N], closed under ancestors.
        tokens: tokens verified in all, before padding to the ladder.
        expected_tokens: tokens expected to be committed, over the batch.
        step_cost_us: the table's price of the step.
        refused: whether `path_prob` held no probabilities, so that all is verified;
            on the CPU that is an error instead.
        trust: share of what scores claim that was counted on.
        group: whose past steps it was made with.
        marks: in what the price is not the table's own.
    """

    widths: Tensor
    keep: Tensor
    tokens: int | Tensor
    expected_tokens: float | Tensor
    step_cost_us: float | Tensor
    refused: bool | Tensor
    trust: float
    group: str
    marks: tuple[str, ...]

    @property
    def claimed(self) -> float:
        """Draft tokens that the scores of what is verified claim will be accepted."""
        return (float(self.expected_tokens) - len(self.widths)) / self.trust


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
            acceptance: "target-only", "match" or "rejection" (p/q).
            objective: "rate", throughput over the last steps and this one, which
                learns by `observe`; or "ratio", the paper's rule for each step alone.
            allocation: "batch": nodes of all requests compete; "uniform": all
                requests verify equally many.
            ladder: totals (widths, when uniform) that the engine has captured, if
                others than the table was measured with.
            calibration: from path probability to acceptance.
            draft_us: time of a step that the table does not include; `observe` learns
                it from a clock.
            outside: "refuse" what was not measured, or "clamp" to it and mark plans.

        Raises:
            PlanError: the rule would change the distribution of the output, or a word
                is none of those.
            ConfigError: `drafts` or `acceptance` is none of those.
        """
        _refuse_bias(Combination(drafts, acceptance, objective, "own"))
        # The throughput of past steps and this one is a ratio, too.
        self.rule = replace(Rule(objective, allocation), objective="ratio")
        self._learns = objective == "rate"
        self._draft_us = draft_us
        self._pasts: dict[tuple[str, int], Past] = {}
        self._prices = Prices(table, self.rule, ladder, outside)
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
            group: requests alike, whose past steps teach each other.

        Raises:
            PlanError: probabilities that cannot be used (on a GPU, see `Plan`).
            TableError: batch, context or tree outside the table's domain.
        """
        check_shape(path_prob)
        batch, nodes = path_prob.shape
        costs, marks = self._prices.at(batch, nodes, context)
        terms = self._terms(batch, group)
        if path_prob.is_cuda:
            device = path_prob.device
            there = self._prices.on_device(batch, nodes, context, device)
            terms_there = on_device.on_its_device(terms, device)
            calibrate = self._calibrate_on(device)
            made = on_device.decide(path_prob, there, self.rule, terms_there, calibrate)
            return Plan(**made._asdict(), trust=terms.trust, group=group, marks=marks)
        own = self._calibration.on_cpu if self._calibration else None
        keep, k, benefit = on_cpu.decide(
            as_numpy(path_prob), costs, self.rule, terms, own
        )
        return Plan(
            torch.from_numpy(widths_of(keep, k, self.rule)),
            torch.from_numpy(keep),
            batch + k * self.rule.pools(batch),
            benefit,
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
            plan: what was done.
            committed_tokens: tokens that the batch gained, the roots' own included.
            step_us: time of the whole step, drafting included; None takes the price.

        Raises:
            PlanError: more tokens than were verified, or fewer than none.
        """
        batch, tokens = len(plan.widths), int(plan.tokens)
        if not 0 <= committed_tokens <= tokens:
            raise PlanError(
                f"committed_tokens {committed_tokens} is not within the {tokens} "
                "tokens that were verified; count each request's own token once"
            )
        if plan.refused:
            return
        self._past(batch, plan.group).observe(
            float(plan.expected_tokens),
            max(committed_tokens - batch, 0),
            plan.claimed,
            float(plan.step_cost_us),
            step_us,
        )

    def captured(
        self, batch: int, nodes: int, device: torch.device, fused: bool = False
    ) -> CapturedDecision:
        """Buffers and operations for a CUDA graph that decides for B x N nodes.

        Before each replay call `price`. `fused` takes Triton kernels in place of
        tensor operations; which is faster has not been measured on a GPU yet.

        Raises:
            TableError: batch or tree outside the table's domain.
            PlanError: no size holds the batch, or `fused` cannot be had.
        """
        sizes = len(self._prices.anywhere(batch, nodes))
        calibrate = self._calibrate_on(device)
        return CapturedDecision(
            batch, nodes, sizes, self.rule, device, calibrate, fused
        )

    def price(
        self, captured: CapturedDecision, context: float, group: str = ""
    ) -> Plan:
        """Ready a captured decision for the coming step.

        Returns the plan that the next replay writes: its tensors are the buffers of
        `captured`, and mean nothing before.
        """
        batch, nodes = captured.path_prob.shape
        marks = self._prices.at(batch, nodes, context).marks
        device = captured.path_prob.device
        costs = self._prices.on_device(batch, nodes, context, device)
        terms = self._terms(batch, group)
        captured.price(costs, terms)
        made = captured.decision._asdict()
        return Plan(**made, trust=terms.trust, group=group, marks=marks)

    def _terms(self, batch: int, group: str) -> Terms:
        if self._learns:
            return self._past(batch, group).terms
        return Terms(us=self._draft_us)

    def _past(self, batch: int, group: str) -> Past:
        # What a microsecond earns depends on how many requests share it: steps of
        # about as many, within a factor of two, teach each other.
        place = (group, batch.bit_length())
        if place not in self._pasts:
            self._pasts[place] = Past(unpriced_us=self._draft_us)
        return self._pasts[place]


def _refuse_bias(combination: Combination) -> None:
    verdict = classify(combination)
    if not verdict.lossless:
        raise PlanError(
            f"{combination} would change what the model says. {verdict.why} "
            f"Lossless is {verdict.instead}, or target-only acceptance"
        )
