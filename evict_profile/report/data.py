"""What the cost report shows, computed once: a fitted run beside its table.

All intervals are of 95 %: bootstrap intervals of fitted costs, exact ones of medians.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from evict_profile.cells import CELL_FIELDS, Cell, with_latency
from evict_profile.cost_model import ForwardCost, features_at, padded_tokens
from evict_profile.fit.fitted import Fitted
from evict_profile.fit.intervals import interval
from evict_profile.report.numbers import Unit, counted, unit_for
from evict_profile.stats import Estimate, Floats, median_interval
from evict_profile.table import CostTable


class StepRatio(NamedTuple):
    """Step cost at one width, and over that of the smallest width measured."""

    width: int
    step_us: Estimate
    times: Estimate


@dataclass(frozen=True)
class View:
    """A fitted run and its table, as seen from the smallest context and batch.

    Latencies of layers are those of the layers measured; steps are of the whole model.
    """

    fitted: Fitted
    table: CostTable

    @cached_property
    def medians(self) -> dict[Cell, Estimate]:
        """Median latency of each timed cell, in microseconds."""
        timed = self.fitted.latencies.items()
        return {cell: median_interval(us) for cell, us in timed if us}

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

    @property
    def _costs(self) -> tuple[ForwardCost, ...]:
        """The fit, then its bootstrap replicates."""
        return (self.fitted.cost, *self.fitted.replicates)

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

    @cached_property
    def ratios(self) -> tuple[StepRatio, ...]:
        """Step cost at each width, and over that of the smallest."""
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
        """Held-out predictions over what was measured, less one, float64 [cells]."""
        held_out = self.fitted.held_out["hinge"]
        return held_out.predicted_us / held_out.points.latency_us - 1.0
