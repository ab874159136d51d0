"""What a decoding step takes beside its forward: drafting, and the rest of a server.

Each class refuses with a ValueError.
"""

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import ArrayLike

from evict_profile.cost_model import ForwardCost, padded_tokens
from evict_profile.records import (
    Count,
    NotNegative,
    Positive,
    check_distinct,
    check_rising,
)
from evict_profile.stats import Floats


class TimedRound(Struct, frozen=True):
    """The time from one decoding round of the engine to the next, at a forced width."""

    width: Count
    union: NotNegative
    context: NotNegative
    us: Positive


class DraftClock(Struct, frozen=True, omit_defaults=True):
    """Time of a step beside verification at a batch size, in microseconds.

    `draft_us` is cumulative by depth, 0 at d = 0. `fixed_us` is the rest of a step of
    tree decoding (acceptance, caches, host), `plain_fixed_us` of plain decoding, and
    `token_us` is added for each verified token beyond the roots. `mechanism_us` is what
    deciding adds to a step whose tree is not cut; None where not measured.
    `reference_us` is the runner's reference work, until scaled to a table's speed.
    """

    batch: Count
    draft_us: tuple[NotNegative, ...]
    fixed_us: NotNegative
    plain_fixed_us: NotNegative
    reference_us: NotNegative | None = None
    rounds: tuple[TimedRound, ...] = ()
    token_us: NotNegative = 0.0
    mechanism_us: NotNegative | None = None

    def __post_init__(self) -> None:
        check_rising("draft_us", self.draft_us)
        if self.draft_us[0] != 0.0:
            raise ValueError(f"draft_us must start at 0, got {self.draft_us[0]}")

    @property
    def max_depth(self) -> int:
        return len(self.draft_us) - 1

    def beside_us(self, levels: int) -> float:
        """What a step that drafts so many levels takes beside its forward."""
        return self.drafted_us(levels) + self.rest_us(levels)

    def drafted_us(self, levels: int) -> float:
        """Time of so many levels; one beyond the deepest takes as long as it."""
        beyond = max(levels - self.max_depth, 0)
        level_us = self.draft_us[-1] - self.draft_us[-2] if self.max_depth else 0.0
        return self.draft_us[min(levels, self.max_depth)] + beyond * level_us

    def rest_us(self, levels: int) -> float:
        return self.fixed_us if levels else self.plain_fixed_us

    def at_speed(self, factor: float) -> "DraftClock":
        return DraftClock(
            self.batch,
            tuple(round(factor * us, 1) for us in self.draft_us),
            round(factor * self.fixed_us, 1),
            round(factor * self.plain_fixed_us, 1),
            rounds=tuple(replace(r, us=round(factor * r.us, 1)) for r in self.rounds),
            token_us=round(factor * self.token_us, 3),
            mechanism_us=self.mechanism_us and round(factor * self.mechanism_us, 1),
        )

    def parts_us(self, cost: ForwardCost) -> Floats:
        """Forward and drafting of each round, by a table's costs: float64 [rounds]."""
        if not self.rounds:
            return np.zeros(0)
        places = [(self.batch * r.width, r.union, r.context) for r in self.rounds]
        tokens, union, context = np.array(places, np.float64).T
        batch = np.full_like(tokens, self.batch)
        return cost.latency_us(tokens, union, context, batch) + self.draft_us[-1]

    @property
    def drafts(self) -> Floats:
        """Tokens of each round beyond the roots: float64 [rounds]."""
        return np.array([self.batch * (r.width - 1.0) for r in self.rounds])


class Drafting(Struct, frozen=True):
    workload: str
    engine: str
    batches: tuple[DraftClock, ...]

    def __post_init__(self) -> None:
        if not self.batches:
            raise ValueError("drafting needs the clock of at least one batch")
        check_distinct("batches", [clock.batch for clock in self.batches])

    @classmethod
    def at_speed(
        cls, clocks: Sequence[DraftClock], workload: str, engine: str, factor: float
    ) -> "Drafting | None":
        """Clocks on a machine where everything takes `factor` times as long."""
        timed = tuple(c.at_speed(factor) for c in sorted(clocks, key=lambda c: c.batch))
        return cls(workload, engine, timed) if timed else None

    def at(self, batch: int) -> DraftClock:
        return min(self.batches, key=lambda clock: abs(math.log(clock.batch / batch)))

    def tokens_us(
        self, tokens: ArrayLike, batch: int, capture_sizes: Sequence[int]
    ) -> Floats:
        """What verified tokens beyond the roots add to a step beside its forward."""
        ran = padded_tokens(tokens, batch, capture_sizes)
        return self.at(batch).token_us * (ran - batch)

    def extending(self) -> "Drafting":
        """The same where a plain step extends the drafter's cache, as SGLang's does."""
        clocks = (replace(c, plain_fixed_us=c.fixed_us) for c in self.batches)
        return replace(self, batches=tuple(clocks))

    def caveats(self, batch: int) -> tuple[str, ...]:
        timed = self.at(batch).batch
        return () if timed == batch else (f"drafting of batch {batch} as of {timed}",)
