"""The truncator: a table, a rule, and what past steps taught, turned into plans."""

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from evict_profile.errors import PlanError
from evict_profile.lossless.rules import Acceptance, Combination, Drafts, classify
from evict_profile.runtime import on_cpu, on_device
from evict_profile.runtime.calibration import Calibration
from evict_profile.runtime.captured import CapturedDecision
from evict_profile.runtime.decision import Allocation, Objective, Rule
from evict_profile.runtime.prices import Prices
from evict_profile.runtime.rate import SpeedUp
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
        step_cost_us: predicted cost of the step.
        plain_us: predicted cost of a step that verifies the roots alone.
        group: whose past steps set the rate.
        refused: whether `path_prob` held no probabilities, so that all is verified;
            on the CPU that is an error instead.
        marks: in what the price is not the table's own.
    """

    widths: Tensor
    keep: Tensor
    tokens: int | Tensor
    expected_tokens: float | Tensor
    step_cost_us: float | Tensor
    plain_us: float
    group: str
    refused: bool | Tensor
    marks: tuple[str, ...]


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
            objective: "rate", the long-run optimum, or "ratio", the paper's rule.
            allocation: "batch": nodes of all requests compete; "uniform": all
                requests verify equally many.
            ladder: totals (widths, when uniform) that the engine has captured, if
                others than the table was measured with.
            calibration: from path probability to acceptance.
            draft_us: time of a step that the table does not include.
            outside: "refuse" what was not measured, or "clamp" to it and mark plans.

        Raises:
            PlanError: the rule would change the distribution of the output.
            ConfigError: `drafts` or `acceptance` is none of those.
        """
        _refuse_bias(Combination(drafts, acceptance, objective, "own"))
        self.rule = Rule(objective, allocation)
        self._prices = Prices(table, self.rule, ladder, draft_us, outside)
        self._calibration = calibration
        self._calibrate_on = lru_cache(None)(
            lambda device: calibration.on_device(device) if calibration else None
        )
        self._speed_ups: defaultdict[tuple[str, int], SpeedUp] = defaultdict(SpeedUp)

    def plan(self, path_prob: Tensor, context: float, group: str = "") -> Plan:
        """Choose the nodes to verify in this step.

        Args:
            path_prob: floats [B, N], root excluded; nodes in any order in which a
                parent stands before a child of the same probability; padding is 0.
            context: tokens in a request's KV cache, mean over the batch.
            group: requests alike, whose past steps set the rate together.

        Raises:
            PlanError: probabilities that cannot be used (on a GPU, see `Plan`).
            TableError: batch, context or tree outside the table's domain.
        """
        check_shape(path_prob)
        decide = self._decide_on_device if path_prob.is_cuda else self._decide_on_cpu
        return decide(path_prob, context, group)

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
    ) -> None:
        """Write costs and rate of the coming step into a captured decision."""
        batch, nodes = captured.path_prob.shape
        plain_us = self._prices.at(batch, nodes, context).us.item(0)
        device = captured.path_prob.device
        costs = self._prices.on_device(batch, nodes, context, device)
        captured.price(costs, self.rate_per_us(batch, plain_us, group))

    def observe(
        self, plan: Plan, committed_tokens: int, step_us: float | None = None
    ) -> None:
        """Tell how a planned step went, so that the rate follows.

        Args:
            plan: what was done.
            committed_tokens: tokens that the batch gained, bonus tokens included.
            step_us: time of the whole step, drafting included; None takes the
                predicted cost.
        """
        batch = len(plan.widths)
        spent_us = float(plan.step_cost_us) if step_us is None else step_us
        plain_steps = spent_us / plan.plain_us
        self._speed_up(plan.group, batch).observe(committed_tokens / batch, plain_steps)

    def rate_per_us(self, batch: int, plain_us: float, group: str = "") -> float:
        """Tokens a microsecond that the last steps of a group gained.

        Args:
            batch: requests verified together.
            plain_us: cost of a step that verifies their roots alone.
        """
        return self._speed_up(group, batch).value * batch / plain_us

    def _speed_up(self, group: str, batch: int) -> SpeedUp:
        # A rate holds for batches of about the same size: within a factor of two.
        return self._speed_ups[group, batch.bit_length()]

    def _decide_on_cpu(self, path_prob: Tensor, context: float, group: str) -> Plan:
        batch, nodes = path_prob.shape
        costs, marks = self._prices.at(batch, nodes, context)
        plain_us = costs.item(0)
        rate = self.rate_per_us(batch, plain_us, group)
        calibrate = self._calibration.on_cpu if self._calibration else None
        keep, k, expected_tokens = on_cpu.decide(
            as_numpy(path_prob), costs, self.rule, rate, calibrate
        )
        return Plan(
            torch.from_numpy(widths_of(keep, k, self.rule)),
            torch.from_numpy(keep),
            batch + k * self.rule.pools(batch),
            expected_tokens,
            costs.item(k),
            plain_us,
            group,
            False,
            marks,
        )

    def _decide_on_device(self, path_prob: Tensor, context: float, group: str) -> Plan:
        batch, nodes = path_prob.shape
        costs, marks = self._prices.at(batch, nodes, context)
        plain_us = costs.item(0)
        device = path_prob.device
        made = on_device.decide(
            path_prob,
            self._prices.on_device(batch, nodes, context, device),
            self.rule,
            _scalar(self.rate_per_us(batch, plain_us, group), device),
            self._calibrate_on(device),
        )
        return Plan(
            made.widths,
            made.keep,
            made.tokens,
            made.expected_tokens,
            made.step_cost_us,
            plain_us,
            group,
            made.refused,
            marks,
        )


def _scalar(value: float, device: torch.device) -> Tensor:
    # full, not tensor: a kernel's argument needs no copy from the host.
    return torch.full((), value, dtype=torch.float64, device=device)


def _refuse_bias(combination: Combination) -> None:
    verdict = classify(combination)
    if not verdict.lossless:
        raise PlanError(
            f"{combination} would change what the model says. {verdict.why} "
            f"Lossless is {verdict.instead}, or target-only acceptance"
        )
