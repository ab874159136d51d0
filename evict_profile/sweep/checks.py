"""Two tests of a runner before its sweep: of the union, and of scaling by layers.

*Does time follow the union?* At a fixed n, the smallest and the largest forced union
differ in nothing but the expert weights that are read, so their latencies must differ
by more than noise. They take turns, and each is compared with its neighbour in time:
where the machine's speed varies, intervals of two medians cannot show a difference of
14 %.

Bytes per expert over the slope in U must be a bandwidth that the device can have: 0.3
to 1.05 of its measured copy. That slope is taken where every expert has one row; with
many rows, experts are bound by arithmetic and imply too large a bandwidth.

*Does a model cost its layers times one layer?* Half of the layers, scaled up, are
compared with all that are open. Fewer layers have a smaller working set, and on a GPU a
smaller share of launches hidden behind work.
"""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from evict_profile.cells import Cell
from evict_profile.config import ModelSpec
from evict_profile.errors import ConfigError
from evict_profile.physics import SLOPE_RANGE
from evict_profile.records import Facts, Finite
from evict_profile.runner import Runner
from evict_profile.stats import Floats, median_interval
from evict_profile.sweep.grid import Grid
from evict_profile.sweep.plan import sample_seed

UNION_REPEATS = 12
"""The fewest whose 95 % interval of the median leaves out two on each side: with eight
it reaches from the least to the most, and one spike decides."""
MIN_SLOWER_TURNS = UNION_REPEATS - 1
"""Turns in which the large union must be the slower: 3 of 1000 by chance."""


@dataclass(frozen=True)
class UnionTest:
    """`differ` says that the small and the large union at `width` differ.

    `bandwidth_share` is implied over measured bandwidth, infinite where the union costs
    nothing, with bounds by the 95 % intervals of two medians; `load` is what else ran.
    """

    width: int
    small_union: int
    large_union: int
    single_token_width: int
    single_token_union: int
    small_us: float
    large_us: float
    single_token_us: float
    differ: bool
    us_per_expert: float
    implied_gbps: float
    measured_gbps: float
    bandwidth_share: float
    bandwidth_share_low: float
    bandwidth_share_high: float
    load: str = ""

    @property
    def passed(self) -> bool:
        low, high = SLOPE_RANGE
        possible = self.bandwidth_share_high >= low and self.bandwidth_share_low <= high
        return self.differ and possible

    def sentence(self) -> str:
        low, high = SLOPE_RANGE
        single_ms, small_ms, large_ms = (
            us / 1e3 for us in (self.single_token_us, self.small_us, self.large_us)
        )
        readings = (
            f"n={self.width}: U={self.small_union} takes {small_ms:.2f} ms, "
            f"U={self.large_union} {large_ms:.2f} ms, a difference "
            f"{'beyond' if self.differ else 'within'} noise; from "
            f"n={self.single_token_width}, U={self.single_token_union} "
            f"({single_ms:.2f} ms) on, an expert takes {self.us_per_expert:.1f} us a "
            f"layer, {self.bandwidth_share:.2f} of the measured copy "
            f"({self.measured_gbps:.1f} GB/s), where {low} to {high} is expected"
        )
        if self.passed:
            return readings
        return (
            f"latency does not follow the expert weights that are read: {readings}; "
            "check the experts kernel, the cache size against the model's, and other "
            "load on the machine"
        )


def union_test_width(grid: Grid, model: ModelSpec) -> int:
    """The smallest width of the grid that fills all experts, else its largest."""
    widths = sorted({c.width for c in grid.cells})
    filling = math.ceil(model.moe.num_experts / model.moe.top_k)
    width = next((w for w in widths if w >= filling), widths[-1])
    if model.largest_union(width) <= model.moe.top_k:
        raise ConfigError(
            "the union test needs a width of at least 2; add one to grid.width"
        )
    return width


def run_union_test(
    runner: Runner, grid: Grid, model: ModelSpec, opened: Facts, layers: int
) -> UnionTest:
    small, large, lone = cells = union_test_cells(grid, model)
    turns = _measure(runner, cells)
    medians = {cell: median_interval(times) for cell, times in turns.items()}
    ratios = turns[large] / turns[small]
    experts = (large.union - lone.union) * layers

    def implied_gbps(difference_us: float) -> float:
        moved = opened["bytes_per_expert"] * experts
        return moved / difference_us / 1e3 if difference_us > 0.0 else math.inf

    copy_gbps = opened["bandwidth_gbps"]
    high, low = medians[large], medians[lone]
    middle = implied_gbps(high.value - low.value)
    return UnionTest(
        width=large.width,
        small_union=small.union,
        large_union=large.union,
        single_token_width=lone.width,
        single_token_union=lone.union,
        small_us=medians[small].value,
        large_us=high.value,
        single_token_us=low.value,
        differ=int((ratios > 1.0).sum()) >= MIN_SLOWER_TURNS,
        us_per_expert=(high.value - low.value) / experts,
        implied_gbps=middle,
        measured_gbps=copy_gbps,
        bandwidth_share=middle / copy_gbps,
        bandwidth_share_low=implied_gbps(high.high - low.low) / copy_gbps,
        bandwidth_share_high=implied_gbps(high.low - low.high) / copy_gbps,
        load=f"{os.getloadavg()[0]:.1f} processes ran on {os.cpu_count()} cores",
    )


def remedy(test: Facts, made_on: Facts) -> str:
    native = made_on.get("device_kind"), made_on.get("dtype")
    flag = "try --dtype float32" if native == ("cpu", "bfloat16") else ""
    return "".join(f"; {text}" for text in (test.get("load"), flag) if text)


def union_test_cells(grid: Grid, model: ModelSpec) -> tuple[Cell, Cell, Cell]:
    """The smallest and the largest union at one width, and the lone cell.

    The lone cell gives each expert one row at the smallest width of all; it is the
    small one if that activates as many experts as the largest union.
    """
    width, smallest = union_test_width(grid, model), min(c.width for c in grid.cells)
    context = min(c.context for c in grid.cells)
    large = model.largest_union(width)
    lone = (smallest, model.largest_union(smallest))
    if lone[1] == large:
        lone = (width, model.smallest_union())
    places = ((width, model.smallest_union()), (width, large), lone)
    small_cell, large_cell, lone_cell = (
        Cell("layers", n, union, context, 1, "balanced") for n, union in places
    )
    return small_cell, large_cell, lone_cell


def _measure(runner: Runner, cells: Iterable[Cell]) -> dict[Cell, Floats]:
    times_us: dict[Cell, list[float]] = {cell: [] for cell in cells}
    for repeat in range(UNION_REPEATS):
        for cell, times in times_us.items():
            (ran,) = runner.measure(cell, [sample_seed(0, -1, cell, repeat)])
            times.append(ran.clock_us)
    return {cell: np.array(times) for cell, times in times_us.items()}


SCALING_REPEATS = 10


@dataclass(frozen=True)
class ScalingTest:
    """Scaled over measured latency, less one, with its 95 % interval."""

    small_layers: int
    large_layers: int
    small_us: float
    large_us: float
    error: Finite
    error_low: Finite
    error_high: Finite

    def sentence(self) -> str:
        return (
            f"layer scaling: {self.small_layers} layers, scaled to "
            f"{self.large_layers}, miss the measured by {self.error:+.1%} "
            f"(95 % interval {self.error_low:+.1%}..{self.error_high:+.1%})"
        )


def run_scaling_test(runner: Runner, cell: Cell, layers: int) -> ScalingTest:
    small = layers // 2
    times_us = np.empty((SCALING_REPEATS, 2))
    for repeat in range(SCALING_REPEATS):
        seeds = [sample_seed(0, -2, cell, repeat)]
        for column, count in enumerate((small, layers)):
            times_us[repeat, column] = runner.measure(cell, seeds, count)[0].clock_us
    errors = times_us[:, 0] * (layers / small) / times_us[:, 1] - 1.0
    ratio = median_interval(1.0 + errors)
    small_us, large_us = np.median(times_us, axis=0).tolist()
    return ScalingTest(
        small_layers=small,
        large_layers=layers,
        small_us=small_us,
        large_us=large_us,
        error=ratio.value - 1.0,
        error_low=ratio.low - 1.0,
        error_high=ratio.high - 1.0,
    )
