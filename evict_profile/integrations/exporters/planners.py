"""Costs for planners that decide step by step: SGLang's DSpark, vLLM's budget.

Both look a step up by the tokens it verifies in all, roots included. A staircase is of
one batch, and counts from `batch` tokens on. Where several have a count, a curve by
tokens takes the smallest batch: so it keeps the cost of the next token, which is what a
scheduler weighs.

A planner decides after drafting, so every step of a curve drafts equally many levels.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from evict_profile.errors import DataError
from evict_profile.stats import Bools, Floats, Ints
from evict_profile.table import CostTable, ServedStep, Staircase

SGLANG_END = (
    "Covered up to {} tokens. SGLang repeats the last cost from there on, so that "
    "further tokens look free: keep max-running-requests times the verify window "
    "within that."
)


@dataclass(frozen=True)
class Export:
    """A document in a system's format.

    Attributes:
        fields: what the system loads.
        notes: what this format lost of this table, one sentence each.
        command: runs the system with it, called FILE; empty where there is none.
        style: how the file is written; YAML holds the notes as comments.
    """

    fields: Mapping[str, Any]
    notes: tuple[str, ...]
    command: str = ""
    style: Literal["json", "yaml"] = "json"


@dataclass(frozen=True)
class TokenCurve:
    """Step cost by tokens in all, of the staircases at one context.

    Attributes:
        tokens: int64 [counts], increasing; counts that no measured batch makes are
            absent.
        step_cost_us: float64 [counts].
        apart: largest relative difference, over the staircases, between what a
            staircase says and what the curve says at the same tokens.
    """

    tokens: Ints
    step_cost_us: Floats
    apart: float

    @classmethod
    def of(cls, staircases: Sequence[Staircase]) -> "TokenCurve":
        """The curve of staircases, smallest batch first."""
        cost_us = np.concatenate([s.step_cost_us[s.batch :] for s in staircases])
        tokens, first, which = np.unique(
            np.concatenate([range(s.batch, len(s.step_cost_us)) for s in staircases]),
            return_index=True,
            return_inverse=True,
        )
        apart = np.abs(cost_us[first][which] / cost_us - 1.0).max()
        return cls(tokens, cost_us[first], float(apart))

    @property
    def last(self) -> int:
        """The most tokens that are covered."""
        return int(self.tokens[-1])

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """First and last token count of each range that was not measured."""
        steps = pairwise(self.tokens.tolist())
        return tuple((low + 1, high - 1) for low, high in steps if high - low > 1)

    @property
    def begins_tier(self) -> Bools:
        """bool [counts]: whether the cost is another than one count before."""
        return np.append(True, np.diff(self.step_cost_us) != 0.0)

    def verify_ms(self) -> list[tuple[int, float]]:
        """Both ends of every flat tier, as (tokens, milliseconds).

        vLLM takes the first point at or above the tokens asked for, within captured
        sizes, and interpolates beyond them: both ends are exact under either.
        """
        kept = self.begins_tier | np.append(self.begins_tier[1:], True)
        cost_ms = (self.step_cost_us[kept] / 1e3).round(6).tolist()
        return list(zip(self.tokens[kept].tolist(), cost_ms, strict=True))


def staircases_at(table: CostTable, context: int | None) -> tuple[Staircase, ...]:
    """The staircases at one context, by default the smallest; smallest batch first."""
    contexts = sorted({stairs.context for stairs in table.staircases})
    wanted = contexts[0] if context is None else context
    if wanted not in contexts:
        raise DataError(
            f"no staircase at context {wanted}; this table has context "
            f"{', '.join(map(str, contexts))}: name one of them with --context"
        )
    found = [stairs for stairs in table.staircases if stairs.context == wanted]
    if any(stairs.includes != ("verify",) for stairs in found):
        raise DataError(
            f"the staircases at context {wanted} hold more than verification, which "
            "this exporter cannot take apart; use a table of verification alone"
        )
    return tuple(sorted(found, key=lambda stairs: stairs.batch))


def curve_of(
    staircases: Sequence[Staircase], max_tokens: int | None = None
) -> TokenCurve:
    """A curve by which a planner would trim.

    Args:
        max_tokens: that the engine verifies at once; the curve must reach them.
    """
    curve = TokenCurve.of(staircases)
    if max_tokens is not None and max_tokens > curve.last:
        raise DataError(
            f"the curve ends at {curve.last} tokens, and the engine will ask for up to "
            f"{max_tokens}; sweep further, or let it run fewer requests or drafts"
        )
    if not _rises(curve.step_cost_us):
        raise DataError(
            f"the curve is flat from {curve.tokens[0]} to {curve.last} tokens: by it "
            "no draft ever costs anything; sweep wider, with routed experts that run"
        )
    if not any(_rises(s.step_cost_us[s.batch :]) for s in staircases):
        raise DataError(
            "the curve is inert: it rises from batch to batch alone, at no size that a "
            "planner can pick within one, so that it would never trim; sweep more "
            "widths"
        )
    return curve


def _rises(cost_us: Sequence[float] | Floats) -> bool:
    return bool(max(cost_us) > cost_us[0])


def sglang_sps(
    served: ServedStep,
    drafts: int,
    context: int | None = None,
    max_tokens: int | None = None,
) -> Export:
    """SGLang's `SpsCostTable`: steps per second by tokens verified in all.

    SGLang keeps the last sample at or under the tokens asked for (a floor look-up), so
    a sample is needed wherever the cost changes, and a flat tier needs only its
    first. The last count measured is kept as well: it says where the measuring ended,
    and SGLang takes a table of a single sample for one that was never filled in.
    """
    forwards = staircases_at(served.table, context)
    staircases = tuple(served.whole(stairs, drafts) for stairs in forwards)
    curve = curve_of(staircases, max_tokens)
    kept = curve.begins_tier | (curve.tokens == curve.last)
    fields = {
        "sample_batch_tokens": curve.tokens[kept].tolist(),
        "sample_steps_per_sec": (1e6 / curve.step_cost_us[kept]).tolist(),
        "max_batch_tokens": curve.last,
    }
    batch, plain = forwards[0].batch, served.whole(forwards[0], 0)
    notes = (
        f"Every step drafts {drafts} levels ({served.drafting.workload}); a plain step "
        f"at batch {batch} takes {plain.step_cost_us[batch] / 1e3:.3f} ms.",
        *_lost(served.table, staircases, curve),
        SGLANG_END.format(curve.last),
    )
    return Export(fields, notes)


def _lost(
    table: CostTable, staircases: Sequence[Staircase], curve: TokenCurve
) -> Iterator[str]:
    """What a cost by tokens loses of the table."""
    activation = table.activation
    workload = "a guess" if activation.is_guess else activation.workload
    low, cost, high = (
        np.concatenate([getattr(s, name) for s in staircases])
        for name in ("low_us", "step_cost_us", "high_us")
    )
    widest = (np.maximum(high - cost, cost - low) / cost).max()
    yield (
        f"Each token count has one union (activation curve: {workload}); the "
        f"95 % interval, up to ±{widest:.1%} of a cost, is not in the numbers."
    )
    if curve.apart:
        yield (
            "The batch is lost: each token count has the cost of the smallest batch "
            f"that has it, and other batches cost up to {curve.apart:.1%} else."
        )
    for first, end in curve.gaps:
        yield (
            f"No batch has a cost at {first} to {end} tokens: SGLang takes them for "
            f"as cheap as {first - 1}."
        )
