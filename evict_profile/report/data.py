"""What the cost report shows, computed once: a fitted run beside its table.

All intervals are of 95 %: bootstrap intervals of fitted costs, exact ones of medians.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from evict_profile.cells import CELL_FIELDS, OK, Cell, cell_of, with_latency
from evict_profile.cost_model import ForwardCost, features_at, padded_tokens
from evict_profile.fit.baselines import HeldOutPredictions
from evict_profile.fit.estimable import marginal_costs
from evict_profile.fit.fitted import Fitted
from evict_profile.fit.hinge import interval
from evict_profile.report.numbers import Unit, counted, unit_for
from evict_profile.stats import Estimate, Floats, MedianInterval, median_interval
from evict_profile.table import CostTable, MarginalCost, measured


@dataclass(frozen=True)
class StepRatio:
    """Step cost at one width, and over that of the smallest width measured."""

    width: int
    union: float
    step_us: Estimate
    times: Estimate


@dataclass(frozen=True)
class Dip:
    """A wider cell whose median is lower than a narrower one's, intervals apart."""

    narrow: Cell
    wide: Cell
    narrow_us: MedianInterval
    wide_us: MedianInterval

    @property
    def change(self) -> float:
        """Relative change of the median, negative."""
        return self.wide_us.median / self.narrow_us.median - 1.0


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


@dataclass(frozen=True)
class Bandwidth:
    """Time of an expert in one layer, and its bytes over that time."""

    us_per_expert: float
    gbps: Estimate


@dataclass(frozen=True)
class View:
    """A fitted run and its table, as seen from the smallest context and batch.

    Latencies of layers are those of the layers measured; steps are of the whole model.
    """

    fitted: Fitted
    table: CostTable

    @cached_property
    def intervals(self) -> dict[Cell, MedianInterval]:
        """Median and 95 % interval of each timed cell."""
        timed = {c: v for c, v in self.fitted.latencies.items() if v}
        return {cell: median_interval(values) for cell, values in timed.items()}

    @cached_property
    def timed(self) -> pd.DataFrame:
        """Timed samples in the order measured, with `latency_us`."""
        timed = with_latency(self.fitted.frame)
        return timed.sort_values(["round", "order"], ignore_index=True)

    @cached_property
    def anchor_rows(self) -> pd.DataFrame:
        """The anchor's samples; the index is the count of samples before each."""
        rows, anchor = self.timed, self.fitted.anchor
        same = [rows[name] == getattr(anchor, name) for name in CELL_FIELDS]
        return rows[np.logical_and.reduce(same)]

    @property
    def events(self) -> list[str]:
        """Throttling, clock changes and stolen time, one text a sample that saw any."""
        return [event for event in self.timed["events"] if event]

    @property
    def unmeasured(self) -> list[tuple[str, str, str]]:
        """Status, cell and reason of every cell that was not measured."""
        rows = self.fitted.frame
        missing = rows[rows["status"] != OK].itertuples()
        return sorted(
            {(str(r.status), str(cell_of(r)), str(r.reason)) for r in missing}
        )

    @property
    def context(self) -> int:
        """The smallest context."""
        return min(self.table.axes.context)

    @property
    def batch(self) -> int:
        """The smallest batch."""
        return min(self.table.axes.batch)

    @property
    def place(self) -> str:
        """Where most drawings are made: "context 512, batch 1"."""
        return f"context {self.context:,}, batch {self.batch}"

    @cached_property
    def forced_here(self) -> tuple[Cell, ...]:
        """Forced, balanced cells at the smallest context and batch."""
        here = (self.context, self.batch)
        cells = self.fitted.layer_points.cells
        return tuple(c for c in cells if (c.context, c.batch) == here)

    def at_width(self, width: int) -> list[Cell]:
        """Forced cells of a width here, the smallest union first."""
        return sorted(c for c in self.forced_here if c.width == width)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Widths measured here."""
        return tuple(sorted({c.width for c in self.forced_here}))

    @property
    def unit(self) -> Unit:
        """Unit for latencies of the layers measured."""
        return unit_for(max(self.fitted.layer_points.latency_us))

    @property
    def step_unit(self) -> Unit:
        """Unit for the cost of a step of the whole model."""
        return unit_for(max(max(s.step_cost_us) for s in self.table.staircases))

    @property
    def layers(self) -> str:
        """The layers measured: "2 layers"."""
        return counted(self.table.fit.measured_layers, "layer")

    @cached_property
    def marginal(self) -> tuple[MarginalCost, ...]:
        """What one more of something costs, as the table says it, or its samples."""
        fitted = self.fitted
        return self.table.fit.marginal or marginal_costs(
            fitted.cost, fitted.points, fitted.validation
        )

    @property
    def time_span(self) -> tuple[datetime, datetime]:
        """When measuring began and ended."""
        made = measured(self.table.provenance)
        start, end = map(datetime.fromisoformat, (made.started, made.finished))
        return start, end

    def layers_us(
        self, widths: ArrayLike, unions: ArrayLike, cost: ForwardCost | None = None
    ) -> Floats:
        """The measured layers' latency by the fit or `cost`, float64 [points]."""
        cost = cost or self.fitted.cost
        tokens = np.asarray(widths, dtype=np.float64) * self.batch
        places = np.broadcast_arrays(tokens, unions, self.context, self.batch)
        return cost.layers.latency_us(features_at(cost.shape, *places))

    def layers_band(self, widths: Floats, unions: Floats) -> tuple[Floats, Floats]:
        """The 95 % bootstrap interval of `layers_us`."""
        fitted, *others = (self.layers_us(widths, unions, c) for c in self._costs)
        return interval(fitted, others)

    def activation(self, tokens: Floats) -> Floats:
        """The table's union when so many tokens run here, float64 [points]."""
        return self.table.activation.at(tokens, self.batch)

    @property
    def _costs(self) -> tuple[ForwardCost, ...]:
        """The fit, then its bootstrap replicates."""
        return (self.fitted.cost, *self.fitted.replicates)

    @cached_property
    def ratios(self) -> tuple[StepRatio, ...]:
        """Step cost at each width, and over that of the smallest."""
        asked = np.array(self.widths) * self.batch
        tokens = padded_tokens(asked, self.batch, list(self.table.axes.ladder))
        unions = self.activation(tokens)
        here = (self.context, self.batch)
        steps = np.stack([c.price(tokens, unions, *here) for c in self._costs])
        return tuple(
            StepRatio(width, union, Estimate.of(step), Estimate.of(step / steps[:, 0]))
            for width, union, step in zip(
                self.widths, unions.tolist(), steps.T, strict=True
            )
        )

    @cached_property
    def dips(self) -> list[Dip]:
        """Cells that surely cost less than narrower ones."""
        return find_dips(self.intervals)

    @cached_property
    def misses(self) -> list[Miss]:
        """Held-out predictions of the fit, the worst first."""
        return find_misses(self.fitted.held_out["hinge"])

    @cached_property
    def split_ratios(self) -> dict[Cell, Estimate]:
        """What uneven shares of the experts cost, where that was measured."""
        return find_split_ratios(self.intervals)

    @cached_property
    def slope_width(self) -> int:
        """The width at which most unions were forced; the union test's if it is one."""
        tested = int(measured(self.table.provenance).union_test["width"])
        return max(self.widths, key=lambda w: (len(self.at_width(w)), w == tested))

    @cached_property
    def bandwidths(self) -> dict[int, Bandwidth]:
        """Implied by the slope in U, for each width where the cost rises with U."""
        size = self.fitted.model.bytes_per_expert
        found = {}
        for width in self.widths:
            cells = self.at_width(width)
            if len(cells) > 1:
                ends = (cells[0], cells[-1])
                slopes = [
                    self.fitted.us_per_expert(cost, *ends) for cost in self._costs
                ]
                if bandwidth := implied_bandwidth(slopes, size):
                    found[width] = bandwidth
        return found


def find_dips(intervals: Mapping[Cell, MedianInterval]) -> list[Dip]:
    """Non-monotone steps: more tokens at the same union, context and batch, for less.

    Only where the two 95 % intervals are apart. A wide cell is listed once, against
    the narrower cell that it undercuts the most. Naturally routed layers are left out:
    their union moves with the width.
    """
    dips = []
    for wide, wide_us in intervals.items():
        if wide.part == "layers" and wide.split == "natural":
            continue
        dearer = [
            Dip(cell, wide, narrow_us, wide_us)
            for cell, narrow_us in intervals.items()
            if narrow_us.low > wide_us.high
            and cell.width < wide.width
            and replace(cell, width=wide.width) == wide
        ]
        dips += sorted(dearer, key=lambda dip: dip.change)[:1]
    return sorted(dips, key=lambda dip: dip.change)


def find_misses(held_out: HeldOutPredictions) -> list[Miss]:
    """Every cell, the worst prediction first."""
    points = held_out.points
    columns = (points.cells, points.latency_us.tolist(), held_out.predicted_us.tolist())
    misses = [Miss(*row) for row in zip(*columns, strict=True)]
    return sorted(misses, key=lambda miss: -abs(miss.residual))


def find_split_ratios(intervals: Mapping[Cell, MedianInterval]) -> dict[Cell, Estimate]:
    """Skewed over balanced latency, by skewed cell, where both were measured.

    An interval divides the far ends of both 95 % intervals: it covers at least 90 %.
    """
    ratios = {}
    for cell, skewed in sorted(intervals.items()):
        even = intervals.get(replace(cell, split="balanced"))
        if cell.split == "skewed" and even:
            low, high = skewed.low / even.high, skewed.high / even.low
            ratios[cell] = Estimate(skewed.median / even.median, low, high)
    return ratios


def implied_bandwidth(
    slopes_us: Sequence[float], bytes_per_expert: int
) -> Bandwidth | None:
    """The bandwidth that slopes in U imply; None where cost does not rise with U.

    Args:
        slopes_us: of one layer, the fitted slope first, then bootstrap replicates.
    """
    slope, size = Estimate.of(np.array(slopes_us)), bytes_per_expert / 1e3
    if slope.value <= 0.0:
        return None
    fastest = size / slope.low if slope.low > 0.0 else float("inf")
    return Bandwidth(
        slope.value, Estimate(size / slope.value, size / slope.high, fastest)
    )
