"""What a cost table knows of a workload, measured by `evict-profile calibrate`.

Activation of experts, acceptance of draft tokens, and the time of drafting. Each class
refuses with a ValueError.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from evict_profile.cost_model import ForwardCost, activated_union
from evict_profile.records import Count, NotNegative, Positive
from evict_profile.stats import Floats


class BatchActivation(Struct, frozen=True):
    """U(t) of so many requests, t = 0..batch * width; below `batch`, of their roots."""

    batch: Count
    union: tuple[NotNegative, ...]

    def __post_init__(self) -> None:
        check_rising("union", self.union)


class ActivationCurve(Struct, frozen=True, dict=True):
    """U(t): mean distinct experts a layer when t tokens run; t = 0..len - 1.

    `by_batch` holds measured batches, of which the nearest in ratio serves. `union`
    serves where there is none, and beyond a batch's own end.
    """

    workload: str
    is_guess: bool
    union: tuple[NotNegative, ...]
    by_batch: tuple[BatchActivation, ...] = ()

    def __post_init__(self) -> None:
        check_rising("union", self.union)
        check_distinct("by_batch", [curve.batch for curve in self.by_batch])

    def at(self, tokens: Floats, batch: float) -> Floats:
        """The union when so many tokens of a batch run, float64 [places]."""
        return activated_union(tokens, batch, *self._arrays)

    def capped(self, experts: int) -> "ActivationCurve":
        def cap(union: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(min(u, float(experts)) for u in union)

        batches = (replace(curve, union=cap(curve.union)) for curve in self.by_batch)
        return replace(self, union=cap(self.union), by_batch=tuple(batches))

    @cached_property
    def _arrays(self) -> tuple[Floats, dict[int, Floats]]:
        batches = {curve.batch: np.array(curve.union) for curve in self.by_batch}
        return np.array(self.union), batches


class CalibrationError(Struct, frozen=True):
    """Errors of scores against acceptance on held-out replies.

    `ece` is the mean |score - share accepted| over bins, `brier` the mean square.
    """

    ece: NotNegative
    brier: NotNegative


class ConditionalAcceptance(Struct, frozen=True):
    """Acceptance of a node whose parent is accepted, by its probability given that.

    A node's chance is the product along its path. Row r of `acceptances` serves the
    r-th best of siblings from 0, the last row all after it.
    """

    scores: tuple[float, ...]
    acceptances: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        check_curves("conditional", self.scores, self.acceptances, by_rank=True)


class Acceptance(Struct, frozen=True):
    """From path probability to acceptance, as measured on `steps` of a workload.

    `acceptances` is one row. `per_rank` is the mean probability that a node's child of
    rank r, by score, is accepted if the node is. `held_out` has the errors of "raw" and
    "calibrated" scores.
    """

    workload: str
    steps: int
    scores: tuple[float, ...]
    acceptances: tuple[tuple[float, ...], ...]
    per_rank: tuple[float, ...]
    held_out: dict[str, CalibrationError]
    conditional: ConditionalAcceptance | None = None

    def __post_init__(self) -> None:
        rows = self.acceptances
        check_curves("acceptances", self.scores, rows[0] if len(rows) == 1 else rows)
        check_per_rank("per_rank", self.per_rank)


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

    def overhead_us(self, depth: int) -> float:
        """Time of a step that drafts to this depth; beyond, as of the last level."""
        if depth == 0:
            return self.plain_fixed_us
        beyond = max(depth - self.max_depth, 0)
        level_us = self.draft_us[-1] - self.draft_us[-2] if self.max_depth else 0.0
        drafted = self.draft_us[min(depth, self.max_depth)] + beyond * level_us
        return drafted + self.fixed_us

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

    def caveats(self, batch: int) -> tuple[str, ...]:
        timed = self.at(batch).batch
        return () if timed == batch else (f"drafting of batch {batch} as of {timed}",)


def check_curves(
    name: str, scores: Any, acceptances: Any, by_rank: bool = False
) -> None:
    """A curve from 0 at score 0 to at most 1 at score 1; `by_rank`, rows of them."""
    x, y = _numbers(name, scores), _numbers(name, acceptances)
    if y.ndim != 1 + by_rank:
        raise ValueError(
            f"{name} needs a row of acceptances for each rank"
            if by_rank
            else f"{name} has several rows, and one is read; learn them again with "
            "evict-profile calibrate"
        )
    paired = x.ndim == 1 and x.shape == y.shape[-1:]
    if not paired or len(x) < 2 or not y.size or x[0] != 0.0 or x[-1] != 1.0:
        raise ValueError(f"{name} needs scores from 0 to 1, one acceptance each")
    if not (np.all(np.diff(x) > 0.0) and np.all(np.diff(y) >= 0.0)):
        raise ValueError(f"{name} must not fall, and its scores must increase")
    if np.any(y[..., 0] != 0.0) or not np.all(y[..., -1] <= 1.0):
        raise ValueError(f"{name}: acceptance must be 0 at score 0, and 1 at most")


def check_per_rank(name: str, chances: Any) -> None:
    values = _numbers(name, chances)
    if values.ndim != 1 or not (np.all(values >= 0) and values.sum() <= 1):
        raise ValueError(
            f"{name} must hold probabilities of siblings, which sum to 1 at the most"
        )


def _numbers(name: str, values: Any) -> Floats:
    try:
        return np.array(values, float)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must hold plain numbers, and each row of it equally many"
        ) from error


def check_rising(name: str, values: Sequence[float]) -> None:
    if not values:
        raise ValueError(f"{name} holds no number")
    if any(after < before for before, after in pairwise(values)):
        raise ValueError(f"{name} falls, and more of it cannot be less")


def check_distinct(name: str, values: Sequence[Any]) -> None:
    if len(set(values)) < len(values):
        raise ValueError(f"{name} holds one of {sorted(values)} twice")
