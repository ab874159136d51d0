"""What a cost table is made of: its key, axes, fit, staircases, gates and provenance.

Each class refuses what it cannot be with a ValueError that names the field; how the
parts agree with one another is checked where the whole is read.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict
from numpy.typing import ArrayLike

from evict_profile.config.sweep import SweepSpec
from evict_profile.cost_model import FEATURES, Term
from evict_profile.errors import TableError
from evict_profile.records import Facts, differences, parse
from evict_profile.stats import ErrorSummary, Floats
from evict_profile.table.workload import check_positive

Caveats = tuple[str, ...]
COMPOSED = "composed"
PLACE = ("tokens", "union", "context", "batch")
AXES = ("width", "union", "context", "batch", "tokens")


class Key(Struct, frozen=True):
    """What a table prices. Lookup is exact on every field."""

    gpu: str
    model: str
    dtype: str
    tp: int
    ep: int
    engine: str
    engine_version: str
    attention_backend: str
    moe_backend: str
    graph_mode: str

    @classmethod
    def of(cls, facts: Facts) -> "Key":
        """The key of what a runner reported.

        Raises:
            ConfigError: a fact is missing or of another kind.
        """
        named = {"gpu": facts.get("device"), **facts}
        own = {name: named[name] for name in cls.names() if name in named}
        return parse(cls, own, "the runner's facts")

    @property
    def where(self) -> str:
        """The device as pages name it, with a word where nothing was measured on it."""
        told = ", composed from public rows, not measured"
        return self.gpu + (told if self.graph_mode == COMPOSED else "")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The ten fields, in order."""
        return cls.__struct_fields__

    def misses(self, running: Mapping[str, Any]) -> tuple[str, ...]:
        """How what runs differs: "tp: 2 here, 1 there". Other facts do not matter."""
        own = asdict(self)
        here = {name: running[name] for name in own if name in running}
        return tuple(differences(here, own))


class Axes(Struct, frozen=True):
    """Values measured on each axis; `ladder` holds the captured graph widths."""

    width: tuple[int, ...]
    union: tuple[int, ...]
    context: tuple[int, ...]
    batch: tuple[int, ...]
    max_tokens: int
    ladder: tuple[int, ...]

    def __post_init__(self) -> None:
        check_positive("max_tokens", self.max_tokens)
        for name in ("width", "union", "context", "batch", "ladder"):
            values = getattr(self, name)
            if any(
                low >= high for low, high in zip((0, *values), values, strict=False)
            ):
                raise ValueError(f"{name} must hold increasing whole numbers above 0")


class TermCost(Struct, frozen=True, omit_defaults=True):
    """One term of the fit: `us_per_unit` times clip(feature - low, 0, high - low).

    The feature "expert_rows" is the union times the hinge in rows per expert. `high` is
    null for a hinge without end. A coefficient alone is not known, since features are
    collinear; older tables hold an interval of it all the same.
    """

    feature: str
    low: float
    high: float | None
    us_per_unit: float
    us_per_unit_interval: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.feature not in FEATURES:
            raise ValueError(f"feature {self.feature!r} is not one of {FEATURES}")
        end = math.inf if self.high is None else self.high
        if not 0.0 <= self.low < end:
            raise ValueError(f"low {self.low} must lie between 0 and high {self.high}")
        if not 0.0 <= self.us_per_unit < math.inf:
            raise ValueError("us_per_unit must be finite and not negative")

    @property
    def term(self) -> Term:
        """The hinge that is priced."""
        return Term(self.feature, self.low, np.inf if self.high is None else self.high)


class Slope(Struct, frozen=True):
    """How fast a price rises between two places, counted along one axis.

    Attributes:
        name: what there is more of: "request".
        axis: along which it is counted: "batch".
        start, end: tokens, union, context and batch of the places.
    """

    name: str
    axis: str
    start: dict[str, float]
    end: dict[str, float]

    def __post_init__(self) -> None:
        if not self.start.keys() == self.end.keys() == set(PLACE):
            raise ValueError(f"start and end must hold {', '.join(PLACE)}")
        places = (*self.start.values(), *self.end.values())
        if not all(0.0 < value < math.inf for value in places):
            raise ValueError("start and end must be finite and above 0")
        if self.axis not in PLACE or not self.start[self.axis] < self.end[self.axis]:
            raise ValueError(f"axis {self.axis!r} must rise from start to end")

    def of(self, price: Callable[..., Floats]) -> Floats:
        """Change a unit of what has a value at each place, shaped as its values."""
        units = self.end[self.axis] - self.start[self.axis]
        return (price(**self.end) - price(**self.start)) / units


class MarginalCost(Slope, frozen=True):
    """What one more of something costs a forward of the whole model: its price's slope.

    Attributes:
        us: microseconds a unit.
        us_interval: 95 % interval.
    """

    us: float
    us_interval: tuple[float, float]

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.us_interval
        if not -math.inf < low <= self.us <= high < math.inf:
            raise ValueError("us must lie inside us_interval, and both be finite")


class Fit(Struct, frozen=True, omit_defaults=True):
    """The cost model: layers_us * layer_scale + non_moe_us.

    Attributes:
        held_out: errors on unseen cells, of "hinge" first, then the simpler models.
        natural: error where the router chose the experts itself, priced at the
            union that was observed; None where that was not measured.
        validation: error between the levels of the axes, on cells that nothing was
            fitted to; None where that was not measured.
        marginal: what one more of something costs, as far as the cells tell; none in
            older tables.
        domain: least and largest measured value of each axis.
    """

    measured_layers: int
    layer_scale: float
    layers: tuple[TermCost, ...]
    non_moe: tuple[TermCost, ...]
    held_out: dict[str, ErrorSummary]
    natural: ErrorSummary | None
    domain: dict[str, tuple[int, int]]
    validation: ErrorSummary | None = None
    marginal: tuple[MarginalCost, ...] = ()

    def __post_init__(self) -> None:
        check_positive("measured_layers", self.measured_layers)
        check_positive("layer_scale", self.layer_scale)
        if sorted(self.domain) != sorted(AXES):
            raise ValueError(f"domain must hold {', '.join(AXES)}")
        for axis, (least, most) in self.domain.items():
            if not 0 < least <= most:
                raise ValueError(f"domain.{axis} must rise from above 0")


class Staircase(Struct, frozen=True, dict=True):
    """Step cost when t tokens are verified in all, for t = 0..len - 1.

    Every request verifies at least its root, so entries below `batch` repeat the
    entry at `batch`. Costs are read at the padded width where there is a ladder, and
    at the table's activation curve. `includes` names the parts of a step in it.
    """

    batch: int
    context: int
    step_cost_us: tuple[float, ...]
    low_us: tuple[float, ...]
    high_us: tuple[float, ...]
    includes: tuple[str, ...] = ("verify",)

    def __post_init__(self) -> None:
        check_positive("batch", self.batch)
        check_positive("context", self.context)
        costs = (self.step_cost_us, self.low_us, self.high_us)
        if len({*map(len, costs)}) > 1 or len(self.step_cost_us) <= self.batch:
            raise ValueError(
                "step_cost_us, low_us and high_us need one cost each from 0 tokens to "
                "at least one a request"
            )
        mean, low, high = np.array(costs, dtype=np.float64)
        if not (np.all(low > 0.0) and np.all(mean > 0.0) and np.all(np.isfinite(high))):
            raise ValueError("step_cost_us holds a cost that is not finite or not > 0")
        if not (np.all(low <= high) and np.all(np.isfinite(mean))):
            raise ValueError("low_us lies above high_us, or a cost is not finite")

    @cached_property
    def price(self) -> "Price":
        """The same as arrays."""
        return Price.of(self.step_cost_us, self.low_us, self.high_us)


class Price(NamedTuple):
    """Step costs at one batch and context, each float64 [T + 1], in microseconds.

    The arrays cannot be written: they are the table's own. Index t is the tokens
    verified in all. Low and high bound the 95 % interval; where the fit priced, they
    are as wide, relatively, as at the nearest measured place. `caveats` says what was
    clamped or overlooked.
    """

    step_cost_us: Floats
    low_us: Floats
    high_us: Floats
    caveats: Caveats = ()

    @classmethod
    def of(
        cls, cost: ArrayLike, low: ArrayLike, high: ArrayLike, caveats: Caveats = ()
    ) -> "Price":
        """Costs as arrays that cannot be written."""
        return cls(_read_only(cost), _read_only(low), _read_only(high), caveats)


class Gate(Struct, frozen=True):
    """One condition that a table must meet to be exported."""

    name: str
    passed: bool
    message: str


class Precision(Struct, frozen=True):
    """How well the sweep knows the medians that it was to measure.

    Attributes:
        asked: relative half-width of a median's 95 % interval at which a cell is done.
        cells: how many were measured.
        reached: share of them that are as precise as asked.
        median, p90: half-widths over the cells.
    """

    asked: float
    cells: int
    reached: float
    median: float
    p90: float

    def __str__(self) -> str:
        return (
            f"{round(self.reached * self.cells)} of {self.cells} cells are known to "
            f"the {self.asked:.1%} asked for (half of the median's 95 % interval: "
            f"median {self.median:.1%}, p90 {self.p90:.1%})"
        )


class Origin(Struct, frozen=True, tag_field="origin"):
    """Where the numbers come from, as far as all tables can say.

    Attributes:
        fingerprint: the facts that the table's key is made of, and others.
        sweep: the grid of cells; with the samples, a table can be refitted.
        bandwidth_gbps: of the device's memory, copied or by its data sheet.
    """

    fingerprint: dict[str, Any]
    sweep: SweepSpec
    samples_sha256: str
    samples: int
    cells: int
    bandwidth_gbps: float
    evict_profile: str

    def __post_init__(self) -> None:
        check_positive("bandwidth_gbps", self.bandwidth_gbps)

    @property
    def caveats(self) -> Caveats:
        """What marks every price of the table."""
        return ()


class Provenance(Origin, frozen=True, tag="measured"):
    """A sweep that measured every cell.

    Attributes:
        clock: what `latency_us` means on this device.
        reference_us: median reference behind the latencies; None without one.
        aa_floor: p95 over cells of the relative difference between the medians of a
            cell's odd and even samples: what differs when nothing does.
        drift: relative change of latency from the beginning of the run to its end, as
            a straight line; in older tables, of the last third against the first.
        dtype_reason: why the sweep ran in its dtype, where the runner chose.
        precision: what the stop rule delivered; None in older tables.
    """

    plan_sha256: str
    skipped: dict[str, int]
    started: str
    finished: str
    measured_minutes: float
    union_test: dict[str, Any]
    scaling_test: dict[str, Any] | None
    clock: str
    reference_us: float | None
    aa_floor: float
    drift: float
    dtype_reason: str = ""
    precision: Precision | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0.0 <= self.aa_floor < math.inf and math.isfinite(self.drift)):
            raise ValueError("aa_floor and drift must be finite, aa_floor from 0")

    @property
    def noise(self) -> float:
        """Relative difference that two measurements of one cell may have."""
        return self.aa_floor + abs(self.drift)


class Composition(Origin, frozen=True, tag=COMPOSED):
    """Cells that were added up from public measurements of their parts.

    Attributes:
        package: name and version of the package that holds the rows, with its licence
            and attribution.
        files: SHA-256 of each file that was read, by its path in the package.
        rows_used, rows_dropped: of the experts' kernel; the reasons with their counts.
        router: how the rows' unions were computed, and why so.
        l2_mb: cache by which rows count as read from memory.
        stand_ins: versions of the engine whose rows stand in for missing ones.
        unpriced: what a step runs and no row prices.
        fixed_us: time of every step beside its parts; 0 where nobody told.
        fixed_from: who told, or what follows of nobody having.
        error: relative errors of composed against served times, of steps and of their
            growth: each the standard deviation that its p90 implies.
    """

    package: str
    licence: str
    attribution: str
    files: dict[str, str]
    rows_used: int
    rows_dropped: dict[str, int]
    router: str
    l2_mb: float
    stand_ins: dict[str, str]
    unpriced: tuple[str, ...]
    fixed_us: float
    fixed_from: str
    error: dict[str, float]

    @property
    def reference_us(self) -> None:
        """No reference work ran."""
        return None

    @property
    def noise(self) -> float:
        """The error of composed growth stands where measurements have a noise floor."""
        return self.error["growth"]

    @property
    def caveats(self) -> Caveats:
        """No price of it was measured."""
        return (
            "prices are composed from public rows, not measured, uncertain by "
            f"{self.error['step']:.0%} (one standard deviation)",
            f"fixed time of a step: {self.fixed_from}",
        )


def measured(origin: Origin) -> Provenance:
    """The sweep behind a table.

    Raises:
        TableError: there is none.
    """
    if isinstance(origin, Provenance):
        return origin
    raise TableError(
        "this table was composed from public rows, so there is no measurement of its "
        "to repeat; measure the device with: evict-profile profile"
    )


def check_marginal(costs: Sequence[MarginalCost], price: Callable[..., Floats]) -> None:
    """Whether they are the slopes of a price.

    Raises:
        ValueError: one is not.
    """
    both = {a: np.array([(c.start[a], c.end[a]) for c in costs]).T for a in PLACE}
    start_us, end_us = price(**both) if costs else ((), ())
    for each, low, high in zip(costs, start_us, end_us, strict=True):
        units = each.end[each.axis] - each.start[each.axis]
        if not math.isclose(each.us * units, high - low, rel_tol=1e-6, abs_tol=1e-6):
            raise ValueError(f"fit.marginal: '{each.name}' is not what the fit prices")


def _read_only(values: ArrayLike) -> Floats:
    """A float64 array that cannot be written."""
    array = np.array(values, dtype=np.float64)
    array.flags.writeable = False
    return array
