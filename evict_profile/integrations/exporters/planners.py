"""Costs for planners that decide step by step, after drafting: SGLang's DSpark, vLLM's
budget.

Both read costs by the tokens of a step, roots included. Where staircases of several
batches have a count, the smallest batch is used, which keeps the marginal cost.
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
        command: runs the system with FILE; may be empty.
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
        tokens: int64 [counts], increasing; unmeasured counts are absent.
        step_cost_us: float64 [counts].
        apart: largest relative difference of a staircase from the curve.
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
        return int(self.tokens[-1])

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """First and last token count of each range that was not measured."""
        steps = pairwise(self.tokens.tolist())
        return tuple((low + 1, high - 1) for low, high in steps if high - low > 1)

    @property
    def begins_tier(self) -> Bools:
        """bool [counts]: whether the cost differs from the count before."""
        return np.append(True, np.diff(self.step_cost_us) != 0.0)

    def verify_ms(self) -> list[tuple[int, float]]:
        """Both ends of every constant range, as (tokens, milliseconds).

        vLLM takes the first point at or above a count within captured sizes, and
        interpolates beyond: both are exact.
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
    """A curve by which a planner would trim; it must reach `max_tokens`."""
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

    SGLang reads the last sample at or below a count, so each change of cost is written.
    The last count is written too, since SGLang ignores a table of one sample.
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
