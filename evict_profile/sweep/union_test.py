"""Does time follow the union? The one test that every runner must pass.

At a fixed n, forcing the smallest and the largest union changes nothing but the
expert weights that are read. So the latencies must differ by more than noise, and
bytes per expert over the slope must be a bandwidth that the device can have: 0.3 to
1.05 of its measured copy. A runner whose experts gather weights a token, or whose
forced routing is ignored, fails here, and not as a plausible table later.
"""

import math
from dataclasses import dataclass

from evict_profile.cells import Cell
from evict_profile.config import ModelSpec
from evict_profile.errors import ConfigError
from evict_profile.physics import SLOPE_RANGE
from evict_profile.stats import median_interval
from evict_profile.sweep.client import Runner
from evict_profile.sweep.grid import Grid
from evict_profile.sweep.plan import sample_seed

REPEATS = 8


@dataclass(frozen=True)
class UnionTest:
    """Readings of the test.

    `bandwidth_share` is implied over measured bandwidth, with the bounds that the
    95 % intervals of the two medians give it.
    """

    width: int
    small_union: int
    large_union: int
    small_us: float
    large_us: float
    apart: bool
    us_per_expert: float
    implied_gbps: float
    measured_gbps: float
    bandwidth_share: float
    bandwidth_share_low: float
    bandwidth_share_high: float

    @property
    def passed(self) -> bool:
        """Both conditions hold, the second as far as noise can tell."""
        low, high = SLOPE_RANGE
        possible = self.bandwidth_share_high >= low and self.bandwidth_share_low <= high
        return self.apart and possible

    def sentence(self) -> str:
        """The result in plain words, with the fix where it failed."""
        case = (
            f"n={self.width}: U={self.small_union} {self.small_us / 1e3:.2f} ms, "
            f"U={self.large_union} {self.large_us / 1e3:.2f} ms"
        )
        if not self.apart:
            return (
                f"{case}: time does not follow the union; the experts kernel reads "
                "weights regardless of routing, so no cost table can be made of it"
            )
        slope = (
            f"{case}: an expert costs {self.us_per_expert:.1f} us a layer, which "
            f"implies {self.implied_gbps:.1f} GB/s, {self.bandwidth_share:.2f} of "
            f"the measured copy ({self.measured_gbps:.1f} GB/s)"
        )
        if self.passed:
            return slope
        low, high = SLOPE_RANGE
        return (
            f"{slope}; that lies outside {low}..{high}, so something else than "
            "expert weights is timed: check the experts kernel, the cache size "
            "against the model's, and other load on the machine"
        )


def union_test_width(grid: Grid, model: ModelSpec) -> int:
    """The smallest width of the grid that fills all experts, else its largest.

    Raises:
        ConfigError: no width can wake more than top-k experts.
    """
    widths = sorted({c.width for c in grid.cells})
    filling = math.ceil(model.moe.num_experts / model.moe.top_k)
    width = next((w for w in widths if w >= filling), widths[-1])
    if model.largest_union(width) <= model.moe.top_k:
        raise ConfigError(
            "the union test needs a width of at least 2; add one to grid.width"
        )
    return width


def run_union_test(
    runner: Runner, grid: Grid, model: ModelSpec, opened: dict[str, float], layers: int
) -> UnionTest:
    """Measure the smallest and the largest union in turns and compare."""
    width = union_test_width(grid, model)
    context = min(c.context for c in grid.cells)
    small, large = (
        Cell("layers", width, union, context, 1, "balanced")
        for union in (model.smallest_union(), model.largest_union(width))
    )
    times_us: dict[Cell, list[float]] = {small: [], large: []}
    for repeat in range(REPEATS):
        for cell in (small, large):
            sample = runner.measure(cell, [sample_seed(0, -1, cell, repeat)])[0]
            times_us[cell].append(sample["clock_us"])
    low, high = (median_interval(times_us[cell]) for cell in (small, large))
    experts = (large.union - small.union) * layers

    def implied_gbps(difference_us: float) -> float:
        moved = opened["bytes_per_expert"] * experts
        return moved / difference_us / 1e3 if difference_us > 0.0 else math.inf

    copy_gbps = opened["bandwidth_gbps"]
    middle = implied_gbps(high.median - low.median)
    return UnionTest(
        width=width,
        small_union=small.union,
        large_union=large.union,
        small_us=low.median,
        large_us=high.median,
        apart=high.low > low.high,
        us_per_expert=(high.median - low.median) / experts,
        implied_gbps=middle,
        measured_gbps=copy_gbps,
        bandwidth_share=middle / copy_gbps,
        bandwidth_share_low=implied_gbps(high.high - low.low) / copy_gbps,
        bandwidth_share_high=implied_gbps(high.low - low.high) / copy_gbps,
    )
