"""The parts of a cost table: its axes, fit, staircases and gates."""

from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

from evict_profile.cost_model import FEATURES, Term
from evict_profile.records import Count, NotNegative, Positive
from evict_profile.stats import ErrorSummary, Floats
from evict_profile.table.key import Caveats

AXES = ("width", "union", "context", "batch", "tokens")


class Axes(Struct, frozen=True):
    width: tuple[Count, ...]
    union: tuple[Count, ...]
    context: tuple[Count, ...]
    batch: tuple[Count, ...]
    max_tokens: Count
    capture_sizes: tuple[Count, ...]

    def __post_init__(self) -> None:
        for name in ("width", "union", "context", "batch", "capture_sizes"):
            values = getattr(self, name)
            if values != tuple(sorted(set(values))):
                raise ValueError(f"{name} must increase")


class TermCost(Struct, frozen=True):
    """One term of the fit: `us_per_unit` times clip(feature - low, 0, high - low).

    The feature "expert_rows" is the union times the hinge in rows per expert. `high` is
    null for a hinge without end.
    """

    feature: str
    low: NotNegative
    high: NotNegative | None
    us_per_unit: NotNegative

    def __post_init__(self) -> None:
        if self.feature not in FEATURES:
            raise ValueError(f"feature {self.feature!r} is not one of {FEATURES}")
        if not self.low < self.term.high:
            raise ValueError(f"low {self.low} must lie below high {self.high}")

    @property
    def term(self) -> Term:
        return Term(self.feature, self.low, np.inf if self.high is None else self.high)


class Fit(Struct, frozen=True, omit_defaults=True):
    """The cost model: layers_us * layer_scale + non_moe_us.

    `held_out` has errors on unseen cells, of "hinge" first, then the simpler models;
    `natural` where the router chose the experts; `validation` between the levels.
    `domain` holds the least and largest measured value of each axis.
    """

    measured_layers: Count
    layer_scale: Positive
    layers: tuple[TermCost, ...]
    non_moe: tuple[TermCost, ...]
    held_out: dict[str, ErrorSummary]
    natural: ErrorSummary | None
    domain: dict[str, tuple[Count, Count]]
    validation: ErrorSummary | None = None

    def __post_init__(self) -> None:
        if sorted(self.domain) != sorted(AXES):
            raise ValueError(f"domain must hold {', '.join(AXES)}")
        for axis, (least, most) in self.domain.items():
            if least > most:
                raise ValueError(f"domain.{axis} falls")


class Staircase(Struct, frozen=True, dict=True):
    """Step cost when t tokens are verified in all, for t = 0..len - 1.

    Entries below `batch` repeat the entry at `batch`. Costs are at the padded width of
    captured sizes and at the activation curve.
    """

    batch: Count
    context: Count
    step_cost_us: tuple[Positive, ...]
    low_us: tuple[Positive, ...]
    high_us: tuple[Positive, ...]
    includes: tuple[str, ...] = ("verify",)

    def __post_init__(self) -> None:
        count = len(self.step_cost_us)
        if not count == len(self.low_us) == len(self.high_us) or count <= self.batch:
            raise ValueError(
                "step_cost_us, low_us and high_us need one cost each from 0 tokens to "
                "at least one a request"
            )
        if np.any(self.costs.low_us > self.costs.high_us):
            raise ValueError("low_us lies above high_us")

    @cached_property
    def costs(self) -> "StepCosts":
        return StepCosts.of(self.step_cost_us, self.low_us, self.high_us)


class StepCosts(NamedTuple):
    """Step costs at one batch and context, each float64 [T + 1], in microseconds.

    Read-only; index t is the tokens verified in all. Low and high bound the 95 %
    interval: at a place of the fit, relatively as wide as at the nearest measured one.
    """

    step_cost_us: Floats
    low_us: Floats
    high_us: Floats
    caveats: Caveats = ()

    @classmethod
    def of(
        cls, cost: ArrayLike, low: ArrayLike, high: ArrayLike, caveats: Caveats = ()
    ) -> "StepCosts":
        return cls(_read_only(cost), _read_only(low), _read_only(high), caveats)

    def interval_at(self, tokens: ArrayLike) -> tuple[float, float]:
        """Median interval of so many tokens, or the most covered, as cost shares."""
        last = len(self.step_cost_us) - 1
        at = np.minimum(np.rint(tokens), last).astype(np.int64)
        shares = (self.low_us, self.high_us) / self.step_cost_us
        low, high = np.median(shares[:, at], axis=1).tolist()
        return low, high


def _read_only(values: ArrayLike) -> Floats:
    array = np.array(values, dtype=np.float64)
    array.flags.writeable = False
    return array


class Gate(Struct, frozen=True):
    name: str
    passed: bool
    message: str
