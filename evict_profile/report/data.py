"""Values of the cost page, computed once.

Intervals are of 95 %: by the fit's residuals, exact for medians.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from evict_profile.cells import CELL_FIELDS, Cell, cells_of, with_latency
from evict_profile.cost_model import design, features_at, padded_tokens
from evict_profile.fit.fitted import Fitted
from evict_profile.fit.intervals import interval
from evict_profile.report.figures_step import as_known
from evict_profile.report.numbers import counted
from evict_profile.stats import Estimate, Floats, median_interval
from evict_profile.table import CostTable


@dataclass(frozen=True)
class View:
    """A fitted run and its table, at the smallest context and batch.

    Latencies of layers are of the layers measured; steps are of the whole model.
    """

    fitted: Fitted
    table: CostTable

    @cached_property
    def medians(self) -> dict[Cell, Estimate]:
        timed = self.fitted.samples.cells
        medians = map(median_interval, timed["samples_us"])
        return dict(zip(cells_of(timed), medians, strict=True))

    @cached_property
    def timed(self) -> pd.DataFrame:
        timed = with_latency(self.fitted.frame)
        return timed.sort_values(["round", "order"], ignore_index=True)

    @cached_property
    def anchor_rows(self) -> pd.DataFrame:
        rows, anchor = self.timed, self.fitted.anchor
        same = [rows[name] == getattr(anchor, name) for name in CELL_FIELDS]
        return rows[np.logical_and.reduce(same)]

    @property
    def place(self) -> tuple[int, int]:
        return min(self.table.axes.context), min(self.table.axes.batch)

    @cached_property
    def forced(self) -> list[Cell]:
        cells = self.fitted.layer_points.index
        here = (c for c in cells if (c.context, c.batch) == self.place)
        return sorted(here, key=lambda cell: (cell.width, cell.union))

    @property
    def what(self) -> str:
        return f"latency of {counted(self.table.fit.measured_layers, 'layer')}, ms"

    def unions(self, widths: Floats) -> Floats:
        """Experts activated by the table's curve, float64 [widths]."""
        batch = self.place[1]
        return self.table.activation.at(widths * batch, batch)

    def layers_us(
        self, widths: Floats, unions: Floats | float
    ) -> tuple[Floats, tuple[Floats, Floats]]:
        """The fit's latency of the measured layers and its interval, [places] each."""
        context, batch = self.place
        places = np.broadcast_arrays(widths * batch, unions, context, batch)
        cost = self.fitted.cost
        values = design(cost.layers.terms, features_at(cost.shape, *places))
        fitted = values @ cost.layers.us_per_unit
        return fitted, interval(fitted, self.fitted.layers_noise_us(values))

    @cached_property
    def growth(self) -> Estimate:
        context, batch = self.place
        verified = batch * np.array([1, self.forced[-1].width])
        tokens = padded_tokens(verified, batch, self.table.axes.capture_sizes)
        unions = self.table.activation.at(tokens, batch)
        steps = self.fitted.costs_at(tokens, unions, context, batch)
        (plain, wide), low, high = steps
        half = float(np.hypot(*((high - low) / 2.0 / steps[0])))
        growth = wide / plain
        return as_known(
            self.table, Estimate(growth, growth * (1.0 - half), growth * (1.0 + half))
        )

    @property
    def residuals(self) -> Floats:
        held_out = self.fitted.held_out["hinge"]
        return held_out.predicted_us / held_out.latency_us - 1.0
