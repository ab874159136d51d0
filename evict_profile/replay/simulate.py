"""Decoding of a trace, simulated: B requests in lockstep, at a table's costs.

The order of replies is endless: one seeded permutation, repeated. Slots 0..B-1 take its
first B. In each step every slot drafts to one common depth, verifies, and commits its
accepted tokens and one of the target's own. A reply counts tokens up to its end; the
policy observes all. A slot whose reply has ended takes the next reply before the next
step, lower slots first. The run ends with the step in which the tokens counted reach
the number that all replies have together.

A step costs the fit's latency at its tokens, union and context, drafting to its depth,
and the fixed rest, which is shorter in plain decoding, and longer where a policy
decides on the host: neither fixed settings nor the oracle, a bound, do.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, islice
from typing import NamedTuple

import numpy as np

from evict_profile.cost_model import padded_tokens
from evict_profile.drafting import DraftClock, Drafting
from evict_profile.records import replace
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.policies import Fixed, Policy
from evict_profile.runtime import CostTable
from evict_profile.served.growth import estimated
from evict_profile.served.step import ServedStep
from evict_profile.stats import Bools, Floats, Ints

DECIDING_US = (1, 16, 64), (39.0, 58.0, 108.0)
"""By batch: deciding, reading scores and the cut, where a table has no `mechanism_us`:
medians on CPUs (docs/explanation/sglang-internals.md), without the waits of a GPU."""
DRAFTS = 3
"""K of the step by which a replay on an estimated table is compared with `advise`."""

Decide = Callable[[Ints], tuple[int, Bools]]
"""From rows, [B], to the depth drafted and which drafted nodes are verified, [B, N]."""


class StepTime(NamedTuple):
    """One step's time, in microseconds, and the experts it activated."""

    verify_us: float
    draft_us: float
    fixed_us: float
    union: float

    @property
    def us(self) -> float:
        return self.verify_us + self.draft_us + self.fixed_us


@dataclass(frozen=True)
class ReplayRun:
    """One simulation; S steps of B requests.

    Attributes:
        rows: int64 [S, B], steps of the trace.
        counted: int64 [S, B], tokens committed, up to the reply's end.
        accepted: int64 [S, B], draft tokens.
        verified: int64 [S, B], tokens, the root included.
        depth: int64 [S], levels drafted.
        cost: float64 [S, 4], a `StepTime` each.
    """

    rows: Ints
    counted: Ints
    accepted: Ints
    verified: Ints
    depth: Ints
    cost: Floats

    @cached_property
    def tokens(self) -> int:
        return int(self.counted.sum())

    @cached_property
    def step_us(self) -> Floats:
        us: Floats = self.cost[:, :3].sum(axis=1)
        return us

    @property
    def tokens_per_s(self) -> float:
        return 1e6 * self.tokens / float(self.step_us.sum())


class StepTimes:
    """Latencies of the steps of one trace at one batch size.

    A table without drafting takes the trace's clocks, scaled by `speed` (see
    `TraceInfo.speed_on`). Policies decide with `table`, which has them.
    """

    def __init__(
        self, table: CostTable, arrays: TraceArrays, batch: int, speed: float = 1.0
    ) -> None:
        self.arrays = arrays
        self.batch = batch
        trace, about = arrays.trace, arrays.trace.about
        context = float(np.clip(arrays.context.mean(), *table.fit.domain["context"]))
        served = ServedStep.of(table, context=context)
        if served.assumes_drafting:
            clocked = Drafting.at_speed(
                trace.clocks, "the trace's own clocks", about.engine, speed
            )
            served = replace(served, drafting=clocked or served.drafting)
            table = replace(table, drafting=served.drafting)
        self.served, self.table = served, table

    @property
    def assumptions(self) -> tuple[str, ...]:
        found = []
        if self.served.assumes_drafting:
            found.append(
                f"drafting takes {self.clock.drafted_us(1):.0f} us a level at batch "
                f"{self.batch}, as one of the target's layers and its head, and the "
                "host nothing; neither is clocked"
            )
        if self.table.is_estimated:
            own, advised = self.over_plain(DRAFTS)
            found.append(
                f"at batch {self.batch} a step of K = {DRAFTS} takes {own:.2f} plain "
                f"steps by kernels and drafting and {advised:.2f} by advise, which "
                "averages kernels with steps of other servers, so it gains "
                f"{'more' if own < advised else 'less'} here"
            )
        if self.table.activation.is_guess and not self.arrays.has_routes:
            found.append("routing is uniform, and text activates fewer experts")
        return tuple(found)

    def over_plain(self, drafts: int) -> tuple[float, float]:
        """A chain's step over a plain one, here and as `advise` estimates it."""
        width, context = 1 + drafts, float(self.arrays.context.mean())
        tokens, plain_us = self.batch * width, self.undrafted_us
        verify_us = self.verify_us(tokens, self.expected_union(tokens), context)
        step_us = verify_us + float(self.served.tokens_us(tokens, self.batch))
        step_us += self.clock.beside_us(drafts)
        advised = estimated(verify_us / plain_us, width).value.value
        return step_us / (plain_us + self.clock.beside_us(0)), advised

    @cached_property
    def caveats(self) -> tuple[str, ...]:
        found = [*self.served.caveats, *self.assumptions]
        found.extend(self.served.drafting.caveats(self.batch))
        if self.clock.mechanism_us is None:
            us = f"{self.deciding_us:.0f} us at batch {self.batch}"
            found.append(f"what deciding adds was not measured, and is taken as {us}")
        if not self.arrays.has_routes:
            found.append(
                "activated experts are read off the table: the trace has no routes"
            )
        if not self.arrays.trace.dense:
            found.append("after each step the next recorded one follows, whatever ran")
        return (*found, *self._outside())

    def interval(self, verified: Floats) -> tuple[float, float]:
        """The table's own, over its cost, at `verified` tokens a request by policy."""
        context = float(self.arrays.context.mean())
        cost = self.table.costs(self.batch, context, "clamp")
        return cost.interval_at(self.batch * verified)

    def interval_note(self, verified: Floats) -> str:
        low, high = (end - 1.0 for end in self.interval(verified))
        return (
            f"a cost at batch {self.batch} has a 95 % "
            f"interval of {low:+.1%} to {high:+.1%} (the median over what "
            "policies verify); the intervals shown leave it out"
        )

    def step(self, rows: Ints, expert_rows: Ints, depth: int) -> StepTime:
        """Steps `rows`, int64 [B], that verify the draft nodes of `expert_rows`."""
        tokens = len(rows) + len(expert_rows)
        if self.arrays.has_routes:
            roots = self.arrays.root[rows]
            union = self.arrays.union(np.concatenate([roots, expert_rows]))
        else:
            union = self.expected_union(tokens)
        verify_us = self.verify_us(tokens, union, self.arrays.mean_context(rows))
        rest_us = self.clock.rest_us(depth)
        rest_us += float(self.served.tokens_us(tokens, self.batch))
        return StepTime(verify_us, self.clock.drafted_us(depth), rest_us, union)

    def verify_us(self, tokens: int, union: float, context: float) -> float:
        """The target's forward; batch and context are clamped to the table's."""
        domain = self.table.fit.domain
        run = padded_tokens(
            np.array([tokens]), self.batch, self.table.axes.capture_sizes
        )
        us = self.table.cost.latency_us(
            run,
            np.array([union]),
            _clamped(context, domain["context"]),
            _clamped(self.batch, domain["batch"]),
        )
        return float(us[0])

    @cached_property
    def undrafted_us(self) -> float:
        """The forward of a batch of roots alone, mid-trace."""
        union = self.expected_union(self.batch)
        return self.verify_us(self.batch, union, float(self.arrays.context.mean()))

    @property
    def deciding_us(self) -> float:
        """What a decision on the host adds to a step."""
        measured = self.clock.mechanism_us
        assumed = float(np.interp(self.batch, *DECIDING_US))
        return assumed if measured is None else measured

    def expected_union(self, tokens: int) -> float:
        at = np.array([float(tokens)])
        return float(self.table.activation.at(at, self.batch)[0])

    @cached_property
    def clock(self) -> DraftClock:
        return self.served.drafting.at(self.batch)

    def _outside(self) -> Iterator[str]:
        contexts, batch = self.arrays.context, self.batch
        needed = {
            "batch": (batch, batch),
            "context": (int(contexts.min()), int(contexts.max())),
            "tokens": (batch, batch * (self.arrays.nodes + 1)),
        }
        for axis, (low, high) in needed.items():
            least, most = self.table.fit.domain[axis]
            if low < least or most < high:
                seen, known = _span(low, high), _span(least, most)
                yield f"{axis} {seen} of the trace, {known} in the table"


def reply_order(replies: int, seed: int) -> Iterator[int]:
    return cycle(np.random.default_rng(seed).permutation(replies).tolist())


def simulate(
    arrays: TraceArrays, policy: Policy, costs: StepTimes, batch: int, seed: int
) -> ReplayRun:

    def decide(rows: Ints) -> tuple[int, Bools]:
        step = policy.begin(len(rows), arrays.mean_context(rows), arrays.nodes)
        depth = 0
        while depth < policy.depth and step.deeper():
            step.extend(*arrays.levels[depth].of(rows))
            depth += 1
        return depth, step.keep()

    if not isinstance(policy, Fixed):
        beside = policy.observe, costs.deciding_us
        return simulate_decisions(arrays, decide, costs, batch, seed, *beside)
    # It learns nothing and decides each tree alone, so all are ranked at once.
    kept = arrays.ranks(policy.depth, policy.conditional) < policy.width - 1
    return simulate_decisions(
        arrays, lambda rows: (policy.depth, kept[rows]), costs, batch, seed
    )


def simulate_decisions(
    arrays: TraceArrays,
    decide: Decide,
    costs: StepTimes,
    batch: int,
    seed: int,
    observe: Callable[[int, float], None] | None = None,
    deciding_us: float = 0.0,
) -> ReplayRun:
    """`simulate` of any decision, each of which adds `deciding_us` to its step;
    `observe` takes tokens and time of each step."""
    order = reply_order(len(arrays.first), seed)
    rows = arrays.first[list(islice(order, batch))]
    steps, left = [], arrays.tokens
    while left > 0:
        depth, kept = decide(rows)
        trees = arrays.drafted(depth)
        cost = costs.step(rows, trees.expert_row[rows][kept], depth)
        cost = cost._replace(fixed_us=cost.fixed_us + deciding_us)
        accepted = (kept & trees.accepted[rows]).sum(axis=1)
        committed = 1 + accepted
        if observe:
            observe(int(committed.sum()), cost.us)
        counted = np.minimum(committed, arrays.tokens_left[rows])
        assert counted.min() >= 1, "each step commits the target's own token"
        steps.append((rows, counted, accepted, 1 + kept.sum(axis=1), depth, cost))
        left -= int(counted.sum())
        rows = arrays.next_rows(rows, committed)
        for slot in np.flatnonzero(rows < 0):
            rows[slot] = arrays.first[next(order)]
    return ReplayRun(*map(np.array, zip(*steps, strict=True)))


def _clamped(value: float, ends: tuple[float, float]) -> float:
    return min(max(value, ends[0]), ends[1])


def _span(low: float, high: float) -> str:
    return f"{low}" if low == high else f"{low}..{high}"
