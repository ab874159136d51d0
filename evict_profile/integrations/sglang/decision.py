"""How many tokens each request of a batch verifies: the runtime, fed by SGLang.

The decision takes one copy from the device: the scores of this step, and what the last
one accepted. It is made on the host, because the width says which captured graph is
launched. Where a step may draft nothing, that is decided first, with a copy of its own.

A step's time is the time from its copy to the next step's. Each copy waits for the
device, so exactly one step lies between two of them, however far the host runs ahead;
where a prefill came between, the time is not counted.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evict_profile.errors import ConfigError
from evict_profile.integrations.sglang.tree import Drafted
from evict_profile.records import replace
from evict_profile.runtime import CostTable, Plan, Truncator

DEFAULT_LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""For a table that was measured without captured graphs, which has no ladder."""


@dataclass(frozen=True)
class WidthChoice:
    """The width of one step.

    Attributes:
        width: tokens that each request verifies.
        plan: the runtime's plan.
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
        self._by_depth = table.acceptance is not None or table.drafting is not None
        self._by_parent = bool(table.acceptance and table.acceptance.conditional)
        continues = table.acceptance is not None and table.acceptance.per_rank
        self.can_pause = bool(table.drafting and continues and 1 in ladder)
        verifies_alone = table.includes == ("verify",)
        self._measured = {s.batch for s in table.staircases if verifies_alone}
        self._last: WidthChoice | None = None
        self._learnt_us, self._unbroken = 0.0, False

    def choose(self, drafted: Drafted, context: float) -> WidthChoice:
        """Choose the width for trees that lie on the host.

        Raises:
            TableError: a batch outside what was measured.
            PlanError: scores that are no probabilities.
        """
        begun_us = _now_us()
        depth = drafted.depth if self._by_depth else None
        plan = self._truncator.plan(
            drafted.path_prob,
            self._inside(context),
            depth=depth,
            parent=drafted.parent if self._by_parent else None,
        )
        levels = 0 if depth is None else int(depth.max())
        return self._chosen(self._to_bucket(plan), context, levels, begun_us)

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

    def learn(self, accepted: Tensor) -> StepOutcome | None:
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
        self._last = WidthChoice(
            width=int(plan.widths[0]),
            plan=plan,
            requests=len(plan.widths),
            context=self._inside(context),
            decision_us=_now_us() - begun_us,
            verify_us=self._verify_us(plan, context, levels),
        )
        return self._last

    def _verify_us(self, plan: Plan, context: float, levels: int) -> float | None:
        """The price of a plan's verification alone, where the table measured it."""
        requests = len(plan.widths)
        if requests not in self._measured or context != self._inside(context):
            return None
        overhead_us = 0.0
        if self._table.drafting and plan.whole_step:
            overhead_us = self._table.drafting.at(requests).overhead_us(levels)
        return float(plan.step_cost_us) - overhead_us

    def _to_bucket(self, plan: Plan) -> Plan:
        """The plan at the next captured width, which the decision may stop short of
        where the last nodes are worth nothing."""
        widths = plan.widths
        width = next(width for width in self._ladder if width >= int(widths[0]))
        tokens = width * len(widths)
        return plan._replace(widths=torch.full_like(widths, width), tokens=tokens)

    def _inside(self, context: float) -> float:
        """The nearest context that was measured."""
        least, most = self._table.fit.domain["context"]
        return min(max(context, least), most)


def _always_extending(table: CostTable) -> CostTable:
    """The table of an engine whose every step extends the drafter's cache, also a step
    that drafts nothing, so that the next one can draft again."""
    if table.drafting is None:
        return table
    clocks = table.drafting.batches
    served = (replace(clock, plain_fixed_us=clock.fixed_us) for clock in clocks)
    return replace(table, drafting=replace(table.drafting, batches=tuple(served)))


def ladder_of(
    table: CostTable, draft_tokens: int, asked: Sequence[int] | None
) -> tuple[int, ...]:
    """Widths to choose from: asked for, or the table's; none above the whole tree.

    Raises:
        ConfigError: a width that was asked for and is not priced, or none is left.
    """
    priced = table.axes.ladder or tuple(range(1, table.fit.domain["width"][1] + 1))
    wanted = asked or table.axes.ladder or DEFAULT_LADDER
    if unpriced := [width for width in asked or () if width not in priced]:
        known = ", ".join(map(str, table.axes.ladder)) or f"1 to {priced[-1]}"
        raise ConfigError(
            f"EVICT_PROFILE_LADDER has width {unpriced[0]}, and {table.path} prices "
            f"widths {known}; measure it, or leave it out"
        )
    if asked and asked[-1] > draft_tokens:
        raise ConfigError(
            f"EVICT_PROFILE_LADDER has width {asked[-1]}, and the server drafts "
            f"{draft_tokens} tokens with the root; leave it out, or raise "
            "--speculative-num-draft-tokens"
        )
    widths = {width for width in wanted if width in priced and width <= draft_tokens}
    if draft_tokens in priced and not asked:
        widths.add(draft_tokens)
    if not widths:
        raise ConfigError(
            f"{table.path} prices no width up to the server's {draft_tokens} draft "
            "tokens; measure smaller widths, or raise --speculative-num-draft-tokens"
        )
    return tuple(sorted(widths))


def fixed_ladder(table: CostTable, width: int, draft_tokens: int) -> tuple[int]:
    """The one width that every step verifies, ranked by conditional acceptance.

    No price is read and nothing is copied to the host. Depth is the server's own
    --speculative-num-steps. A fixed width by path probability needs no plug-in.

    Raises:
        ConfigError: the table knows no conditional acceptance, or so many tokens are
            not drafted.
    """
    if table.acceptance is None or table.acceptance.conditional is None:
        raise ConfigError(
            "EVICT_PROFILE_WIDTH ranks by conditional acceptance, and "
            f"{table.path} has none; measure it with evict-profile calibrate, or "
            "set the width by --speculative-num-draft-tokens alone"
        )
    if width > draft_tokens:
        raise ConfigError(
            f"EVICT_PROFILE_WIDTH={width}, and the server drafts {draft_tokens} "
            "tokens with the root; give fewer, or raise "
            "--speculative-num-draft-tokens"
        )
    return (width,)


def _now_us() -> float:
    return time.perf_counter_ns() / 1e3


class Host:
    """Pinned buffers, one for each size, and one wait for all copies of a step."""

    def __init__(self) -> None:
        self._pinned: dict[tuple[torch.Size, torch.dtype, int], Tensor] = {}

    def fetch(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors on the host, valid until the next fetch; waits for the device."""
        if not any(tensor.is_cuda for tensor in tensors):
            return tensors
        copies = tuple(
            self._copy(place, tensor) if tensor.is_cuda else tensor
            for place, tensor in enumerate(tensors)
        )
        torch.cuda.current_stream().synchronize()
        return copies

    def _copy(self, place: int, tensor: Tensor) -> Tensor:
        key = (tensor.shape, tensor.dtype, place)
        if key not in self._pinned:
            self._pinned[key] = torch.empty(
                tensor.shape, dtype=tensor.dtype, pin_memory=True
            )
        return self._pinned[key].copy_(tensor, non_blocking=True)
