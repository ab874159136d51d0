"""What the samples say, as plain values: pure functions, no drawing and no prose."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from evict_profile.cells import Cell
from evict_profile.fit.baselines import HeldOut
from evict_profile.fit.hinge import CostModel, interval
from evict_profile.stats import MedianInterval


@dataclass(frozen=True)
class Ratio:
    """Step cost at one width, and how many times it is that of the smallest width.

    Intervals are 90 % bootstrap intervals; `union` is the union that was assumed.
    """

    width: int
    step_us: float
    step_low_us: float
    step_high_us: float
    times: float
    times_low: float
    times_high: float
    union: float


@dataclass(frozen=True)
class Dip:
    """A wider cell that was measured cheaper than a narrower one, surely."""

    narrow: Cell
    wide: Cell
    narrow_us: MedianInterval
    wide_us: MedianInterval

    @property
    def change(self) -> float:
        """Relative change of the median, negative."""
        return self.wide_us.median / self.narrow_us.median - 1.0


def dips(intervals: Mapping[Cell, MedianInterval]) -> tuple[Dip, ...]:
    """Non-monotone steps: more tokens at the same union, context and batch, for less.

    Told only where the two 95 % intervals are apart. A wide cell is told once, against
    the narrower cell that it undercuts the most. Naturally routed layers are left out:
    their union moves with the width.
    """
    series: dict[tuple[object, ...], list[Cell]] = defaultdict(list)
    for cell in intervals:
        if cell.part == "ends" or cell.split != "natural":
            same = (cell.part, cell.split, cell.union, cell.context, cell.batch)
            series[same].append(cell)
    found = [
        dip
        for cells in series.values()
        for wide in cells
        if (dip := _deepest_dip(wide, cells, intervals))
    ]
    return tuple(sorted(found, key=lambda dip: dip.change))


def _deepest_dip(
    wide: Cell, cells: list[Cell], intervals: Mapping[Cell, MedianInterval]
) -> Dip | None:
    own = intervals[wide]
    dearer = [
        Dip(cell, wide, intervals[cell], own)
        for cell in cells
        if cell.width < wide.width and intervals[cell].low > own.high
    ]
    return min(dearer, key=lambda dip: dip.change, default=None)


@dataclass(frozen=True)
class Miss:
    """One cell's held-out prediction against its median."""

    cell: Cell
    measured_us: float
    predicted_us: float

    @property
    def residual(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_us / self.measured_us - 1.0


def misses(held_out: HeldOut) -> tuple[Miss, ...]:
    """Every cell, the worst prediction first."""
    points = held_out.points
    columns = (points.cells, points.latency_us.tolist(), held_out.predicted_us.tolist())
    every = [Miss(*row) for row in zip(*columns, strict=True)]
    return tuple(sorted(every, key=lambda miss: -abs(miss.residual)))


@dataclass(frozen=True)
class SplitRatio:
    """Skewed over balanced latency of one cell.

    The interval divides the 95 % intervals' far ends, so it covers at least 90 %.
    """

    cell: Cell
    ratio: float
    low: float
    high: float


def split_ratios(intervals: Mapping[Cell, MedianInterval]) -> tuple[SplitRatio, ...]:
    """One ratio for each cell that was measured both balanced and skewed."""
    found = []
    for cell, skewed in sorted(intervals.items()):
        place = (cell.width, cell.union, cell.context, cell.batch)
        even = intervals.get(Cell("layers", *place, "balanced"))
        if cell.split == "skewed" and even:
            far = (skewed.low / even.high, skewed.high / even.low)
            found.append(SplitRatio(cell, skewed.median / even.median, *far))
    return tuple(found)


@dataclass(frozen=True)
class Bandwidth:
    """Bytes per expert over the fitted slope in U at one width, 90 % interval."""

    width: int
    small_union: int
    large_union: int
    us_per_expert: float
    gbps: float
    gbps_low: float
    gbps_high: float


def implied_bandwidth(
    cost: CostModel, replicates: list[CostModel], cell: Cell, large_union: int
) -> Bandwidth | None:
    """The bandwidth that a slope implies; None where cost does not rise with U."""
    large = replace(cell, union=large_union)
    slopes = [c.us_per_expert(cell, large) for c in (cost, *replicates)]
    if slopes[0] <= 0.0:
        return None
    low, high = interval([np.array([slope]) for slope in slopes[1:]])
    size = cost.model.bytes_per_expert / 1e3
    fastest = size / low[0] if low[0] > 0.0 else float("inf")
    return Bandwidth(
        width=cell.width,
        small_union=cell.union,
        large_union=large_union,
        us_per_expert=slopes[0],
        gbps=size / slopes[0],
        gbps_low=float(size / high[0]),
        gbps_high=float(fastest),
    )
