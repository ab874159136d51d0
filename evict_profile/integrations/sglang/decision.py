"""How many tokens each request of a batch verifies: the runtime, fed by SGLang.

The decision takes one copy from the device: the scores of this step, and what the last
one accepted. It is made on the host, because the width says which captured graph is
launched. Where a step may draft nothing, that is decided first, with a copy of its own.

A step's time is the time from its copy to the next step's. Each copy waits for the
device, so exactly one step lies between two of them, however far the host runs ahead;
where a prefill came between, the time is not counted.
"""

import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evict_profile.integrations.sglang.tree import HostTrees
from evict_profile.records import replace
from evict_profile.runtime import CostTable, Plan, Truncator


@dataclass(frozen=True)
class WidthChoice:
    """The width of one step.

    Attributes:
        width: tokens that each request verifies.
        plan: the runtime's plan, at that width.
        requests: in the batch.
        context: tokens in a request's cache that it was priced at.
        decision_us: host time that it took, the wait for the draft left out.
        verify_us: the table's price of its verification alone; None where the table
            measured no such batch, which a graph may pad, or no such context.
    """

    width: int
    plan: Plan
    requests: int
    context: float
    decision_us: float
    verify_us: float | None = None


@dataclass(frozen=True)
class StepOutcome:
    """Tokens that a step committed, and its time if it is known."""

    choice: WidthChoice
    committed: int
    step_us: float | None


class Chooser:
    """Decides widths from a table, and learns from how the steps went.

    Attributes:
        can_pause: whether a step may draft nothing.
    """

    def __init__(self, table: CostTable, ladder: Sequence[int]) -> None:
        """A chooser for greedy decoding and target-only sampling, as SGLang's trees
        have; on both, any rule of cutting is lossless."""
        self._table, self._ladder = _always_extending(table), tuple(ladder)
        self._truncator = Truncator(
            self._table,
            drafts="topk",
            acceptance="target-only",
            allocation="uniform",
            ladder=ladder,
        )
        self._by_depth = table.drafting is not None
        self._by_parent = bool(table.acceptance and table.acceptance.conditional)
        continues = table.acceptance is not None and table.acceptance.per_rank
        self.can_pause = bool(table.drafting and continues and 1 in ladder)
        self._least, self._most = table.fit.domain["context"]
        verifies_alone = table.includes == ("verify",)
        self._measured = {s.batch for s in table.staircases if verifies_alone}
        self._beside_us = lru_cache(None)(self._us_beside_verification)
        self._last: WidthChoice | None = None
        self._learnt_us, self._unbroken = 0.0, False

    def choose(self, trees: HostTrees, context: float) -> WidthChoice:
        """Choose the width for trees, and the nodes to verify."""
        begun_us = _now_us()
        requests, nodes = trees.path_prob.shape
        depth = trees.depth() if self._by_depth else None
        parent = trees.parent() if self._by_parent else None
        step = self._truncator.begin(requests, self._inside(context), nodes)
        plan = step.plan_drafted(trees.path_prob, depth, parent)
        levels = 0 if depth is None else int(depth.max())
        captured = self._to_bucket(plan, trees.path_prob)
        return self._chosen(captured, context, levels, begun_us)

    def pause(self, requests: int, context: float) -> WidthChoice | None:
        """The choice of a step that drafts nothing, if past steps say it pays.

        None where the table lacks the time of drafting or the ladder lacks width 1.
        """
        if not self.can_pause:
            return None
        begun_us = _now_us()
        step = self._truncator.begin(requests, self._inside(context))
        if step.deeper():
            return None
        return self._chosen(step.plan(), context, 0, begun_us)

    def learn(self, accepted: NDArray[Any]) -> StepOutcome | None:
        """Learn from the step before; to be called before the next choice.

        Args:
            accepted: int [B], tokens that each of its requests committed.
        """
        last, self._last = self._last, None
        if last is None and self._unbroken:
            return None  # learnt already, when the pause was decided
        now_us = _now_us()
        step_us = now_us - self._learnt_us if self._unbroken else None
        self._learnt_us, self._unbroken = now_us, True
        if last is None:
            return None
        outcome = StepOutcome(last, int(accepted.sum()), step_us)
        clock_us = None if last.plan.whole_step else step_us
        self._truncator.observe(last.plan, outcome.committed, clock_us)
        return outcome

    def prices(self, requests: int) -> bool:
        """Whether the table prices this batch size."""
        least, most = self._table.fit.domain["batch"]
        return least <= requests <= most

    def skip(self) -> None:
        """Learn nothing from this step, whose width was not decided here."""
        self._last, self._unbroken = None, False

    def interrupt(self) -> None:
        """Count the time up to now for no step: a prefill ran."""
        self._unbroken = False

    def _chosen(
        self, plan: Plan, context: float, levels: int, begun_us: float
    ) -> WidthChoice:
        requests = plan.keep.shape[0]
        self._last = WidthChoice(
            width=int(plan.tokens) // requests,
            plan=plan,
            requests=requests,
            context=self._inside(context),
            decision_us=_now_us() - begun_us,
            verify_us=self._verify_us(plan, requests, context, levels),
        )
        return self._last

    def _verify_us(
        self, plan: Plan, requests: int, context: float, levels: int
    ) -> float | None:
        """The price of a plan's verification alone, where the table measured it."""
        if requests not in self._measured or context != self._inside(context):
            return None
        beside_us = self._beside_us(requests, levels) if plan.whole_step else 0.0
        return float(plan.step_cost_us) - beside_us

    def _us_beside_verification(self, requests: int, levels: int) -> float:
        drafting = self._table.drafting
        return drafting.at(requests).overhead_us(levels) if drafting else 0.0

    def _to_bucket(self, plan: Plan, path_prob: NDArray[Any]) -> Plan:
        """The plan at the next captured width, which the decision may stop short of
        where the last nodes are worth nothing; then the most probable of those."""
        requests = len(path_prob)
        decided = int(plan.tokens) // requests
        width = self._ladder[bisect_left(self._ladder, decided)]
        if width == decided:
            return plan
        kept_first = np.where(plan.keep.numpy(), -np.inf, -path_prob)
        best = kept_first.argsort(axis=1, kind="stable")
        keep = np.zeros(path_prob.shape, np.bool_)
        np.put_along_axis(keep, best[:, : width - 1], True, axis=1)
        return replace(
            plan,
            widths=torch.full_like(plan.widths, width),
            keep=torch.from_numpy(keep),
            tokens=width * requests,
        )

    def _inside(self, context: float) -> float:
        """The nearest context that was measured."""
        return min(max(context, self._least), self._most)


def _always_extending(table: CostTable) -> CostTable:
    """The table of an engine whose every step extends the drafter's cache, also a step
    that drafts nothing, so that the next one can draft again."""
    if table.drafting is None:
        return table
    clocks = table.drafting.batches
    served = (replace(clock, plain_fixed_us=clock.fixed_us) for clock in clocks)
    return replace(table, drafting=replace(table.drafting, batches=tuple(served)))


def _now_us() -> float:
    return time.perf_counter_ns() / 1e3


class Host:
    """Pinned buffers, one for each size, and one wait for all copies of a step."""

    def __init__(self) -> None:
        self._pinned: dict[tuple[torch.Size, torch.dtype, int], Tensor] = {}

    def fetch(self, *tensors: Tensor) -> tuple[NDArray[Any], ...]:
        """The tensors on the host, valid until the next fetch; waits for the device."""
        if any(tensor.is_cuda for tensor in tensors):
            tensors = tuple(
                self._copy(place, tensor) if tensor.is_cuda else tensor
                for place, tensor in enumerate(tensors)
            )
            torch.cuda.current_stream().synchronize()
        return tuple(tensor.numpy() for tensor in tensors)

    def _copy(self, place: int, tensor: Tensor) -> Tensor:
        key = (tensor.shape, tensor.dtype, place)
        if key not in self._pinned:
            self._pinned[key] = torch.empty(
                tensor.shape, dtype=tensor.dtype, pin_memory=True
            )
        return self._pinned[key].copy_(tensor, non_blocking=True)
