"""Costs for planners that decide step by step, after drafting, as vLLM's budget does.

It reads costs by the tokens of a step, roots included. Where staircases of several
batches have a count, the smallest batch is used, which keeps the marginal cost.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from evict_profile.errors import DataError
from evict_profile.stats import Floats, Ints
from evict_profile.table import CostTable, Staircase


@dataclass(frozen=True)
class Export:
    """A document in a system's format.

    Attributes:
        fields: what the system loads; no file is written of none.
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
    """

    tokens: Ints
    step_cost_us: Floats

    @classmethod
    def of(cls, staircases: Sequence[Staircase]) -> "TokenCurve":
        """The curve of staircases, smallest batch first."""
        cost_us = np.concatenate([s.step_cost_us[s.batch :] for s in staircases])
        counts = [range(s.batch, len(s.step_cost_us)) for s in staircases]
        tokens, first = np.unique(np.concatenate(counts), return_index=True)
        return cls(tokens, cost_us[first])

    def verify_ms(self) -> list[tuple[int, float]]:
        """Both ends of every constant range, as (tokens, milliseconds).

        vLLM takes the first point at or above a count within captured sizes, and
        interpolates beyond: both are exact.
        """
        changes = np.diff(self.step_cost_us) != 0.0
        kept = np.append(True, changes) | np.append(changes, True)
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


def curve_of(staircases: Sequence[Staircase]) -> TokenCurve:
    """A curve by which a planner would trim."""
    curve = TokenCurve.of(staircases)
    check_rises([curve.step_cost_us])
    check_rises(s.costs.step_cost_us[s.batch :] for s in staircases)
    return curve


def check_rises(costs: Iterable[Floats]) -> None:
    if not any(cost_us.max() > cost_us[0] for cost_us in costs):
        raise DataError(
            "by these costs no draft ever costs anything: none rises with the tokens "
            "of one batch; sweep more and larger widths, with routed experts that run"
        )
