"""Values of the cost page, computed once.

Intervals are of 95 %: bootstrap of fitted costs, exact for medians.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from evict_profile.cells import CELL_FIELDS, Cell, cells_of, with_latency
from evict_profile.cost_model import ForwardCost, features_at, padded_tokens
from evict_profile.fit.fitted import Fitted
from evict_profile.fit.intervals import interval
from evict_profile.report.numbers import Unit, counted, unit_for
from evict_profile.stats import Estimate, Floats, median_interval
from evict_profile.table import CostTable


class StepRatio(NamedTuple):
    """Step cost at a width, and over that of the smallest width."""

    width: int
    step_us: Estimate
    times: Estimate


@dataclass(frozen=True)
class View:
    """A fitted run and its table, at the smallest context and batch.

    Latencies of layers are of the layers measured; steps are of the whole model.
    """

    fitted: Fitted
    table: CostTable

    @cached_property
    def medians(self) -> dict[Cell, Estimate]:
        """Median latency of each timed cell, us."""
        timed = self.fitted.samples.cells
        medians = map(median_interval, timed["samples_us"])
        return dict(zip(cells_of(timed), medians, strict=True))

    @cached_property
    def timed(self) -> pd.DataFrame:
        """Timed samples in order, with `latency_us`."""
        timed = with_latency(self.fitted.frame)
        return timed.sort_values(["round", "order"], ignore_index=True)

    @cached_property
    def anchor_rows(self) -> pd.DataFrame:
        """The anchor's samples; the index counts the samples before each."""
        rows, anchor = self.timed, self.fitted.anchor
        same = [rows[name] == getattr(anchor, name) for name in CELL_FIELDS]
        return rows[np.logical_and.reduce(same)]

    @property
    def context(self) -> int:
        return min(self.table.axes.context)

    @property
    def batch(self) -> int:
        return min(self.table.axes.batch)

    @property
    def place(self) -> str:
        return f"context {self.context:,}, batch {self.batch}"

    @cached_property
    def forced_here(self) -> tuple[Cell, ...]:
        here = (self.context, self.batch)
        cells = self.fitted.layer_points.index
        return tuple(c for c in cells if (c.context, c.batch) == here)

    def at_width(self, width: int) -> list[Cell]:
        """Forced cells of a width, the smallest union first."""
        return sorted(c for c in self.forced_here if c.width == width)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        return tuple(sorted({c.width for c in self.forced_here}))

    @property
    def unit(self) -> Unit:
        return unit_for(max(self.fitted.layer_points["latency_us"]))

    @property
    def step_unit(self) -> Unit:
        return unit_for(max(max(s.step_cost_us) for s in self.table.staircases))

    @property
    def layers(self) -> str:
        return counted(self.table.fit.measured_layers, "layer")

    @property
    def _costs(self) -> tuple[ForwardCost, ...]:
        """The fit, then its bootstrap replicates."""
        return (self.fitted.cost, *self.fitted.replicates)

    def layers_us(
        self, widths: ArrayLike, unions: ArrayLike, cost: ForwardCost | None = None
    ) -> Floats:
        """Latency of the measured layers by the fit or `cost`, float64 [points]."""
        cost = cost or self.fitted.cost
        tokens = np.asarray(widths, dtype=np.float64) * self.batch
        places = np.broadcast_arrays(tokens, unions, self.context, self.batch)
        return cost.layers.latency_us(features_at(cost.shape, *places))

    def layers_band(self, widths: Floats, unions: Floats) -> tuple[Floats, Floats]:
        """The 95 % bootstrap interval of `layers_us`."""
        fitted, *others = (self.layers_us(widths, unions, c) for c in self._costs)
        return interval(fitted, others)

    @cached_property
    def ratios(self) -> tuple[StepRatio, ...]:
        verified, sizes = (
            np.array(self.widths) * self.batch,
            self.table.axes.capture_sizes,
        )
        tokens = padded_tokens(verified, self.batch, sizes)
        unions = self.table.activation.at(tokens, self.batch)
        here = (self.context, self.batch)
        steps = np.stack([c.latency_us(tokens, unions, *here) for c in self._costs])
        return tuple(
            StepRatio(width, Estimate.of(step), Estimate.of(step / steps[:, 0]))
            for width, step in zip(self.widths, steps.T, strict=True)
        )

    @property
    def residuals(self) -> Floats:
        """Held-out predictions over measurements, minus one, float64 [cells]."""
        held_out = self.fitted.held_out["hinge"]
        return held_out.predicted_us / held_out.latency_us - 1.0
