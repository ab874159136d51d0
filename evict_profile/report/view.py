"""What every part of a report needs to know of a fitted run, worked out once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from evict_profile.cells import CELL_FIELDS, Cell, with_latency
from evict_profile.fit.fitted import Fitted
from evict_profile.fit.hinge import CostModel, interval
from evict_profile.pricing import features_at, padded_tokens
from evict_profile.report.findings import Ratio
from evict_profile.stats import Floats, MedianInterval, median_interval
from evict_profile.table import CostTable


@dataclass(frozen=True)
class Unit:
    """A unit of time in which a set of latencies reads well."""

    name: str
    microseconds: float

    def of(self, microseconds: float) -> str:
        """A latency with its unit, three digits: "12.3 ms"."""
        return f"{self.bare(microseconds)} {self.name}"

    def bare(self, microseconds: float) -> str:
        """As `of`, without the unit."""
        value = microseconds / self.microseconds
        digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
        return f"{value:,.{digits}f}"


US, MS, SECONDS = Unit("us", 1.0), Unit("ms", 1e3), Unit("s", 1e6)


def unit_for(microseconds: float) -> Unit:
    """The unit in which a latency as large as this one is a short number."""
    if microseconds < 2e3:
        return US
    return MS if microseconds < 1e7 else SECONDS


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
        rows = self.timed
        anchor = self.fitted.anchor
        own = [rows[name] == getattr(anchor, name) for name in CELL_FIELDS]
        return rows[np.logical_and.reduce(own)]

    @property
    def context(self) -> int:
        """The smallest context."""
        return min(self.table.axes.context)

    @property
    def batch(self) -> int:
        """The smallest batch."""
        return min(self.table.axes.batch)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Widths measured at the smallest context and batch."""
        return tuple(sorted({c.width for c in self.forced_here}))

    @cached_property
    def forced_here(self) -> tuple[Cell, ...]:
        """Forced, balanced cells at the smallest context and batch."""
        cells = self.fitted.layer_points.cells
        here = (self.context, self.batch)
        return tuple(c for c in cells if (c.context, c.batch) == here)

    @property
    def unions(self) -> tuple[int, ...]:
        """Unions forced, increasing."""
        return self.table.axes.union

    @property
    def unit(self) -> Unit:
        """Unit for latencies of the layers measured."""
        return unit_for(max(self.fitted.layer_points.latency_us))

    @property
    def layers(self) -> str:
        """The layers measured: "2 layers"."""
        count = self.table.fit.measured_layers
        return f"{count} layer" if count == 1 else f"{count} layers"

    @property
    def place(self) -> str:
        """Where most drawings are made: "context 512, batch 1"."""
        return f"context {self.context:,}, batch {self.batch}"

    def largest_union(self, width: int) -> int:
        """The largest union forced that a width can wake at the smallest batch."""
        most = self.table.model.largest_union(width * self.batch)
        return max(u for u in self.unions if u <= most)

    def layers_us(
        self, widths: Sequence[float] | Floats, unions: Sequence[float] | Floats
    ) -> Floats:
        """Fitted latency of the measured layers here, float64 [places]."""
        return self._layers_us(self.fitted.cost, np.array(widths), np.array(unions))

    def layers_band(self, widths: Floats, unions: Floats) -> tuple[Floats, Floats]:
        """The 90 % bootstrap interval of `layers_us`."""
        others = self.fitted.replicates
        return interval([self._layers_us(o, widths, unions) for o in others])

    def growth(self, tokens: Floats) -> Floats:
        """The table's union when so many tokens run here, float64 [places]."""
        return self.table.union_growth.at(tokens, self.batch)

    @cached_property
    def ratios(self) -> tuple[Ratio, ...]:
        """Step cost at each width over that of the smallest, with 90 % intervals."""
        asked = np.array(self.widths) * self.batch
        tokens = padded_tokens(asked, self.batch, list(self.table.axes.ladder))
        unions = self.growth(tokens)

        def step_us(cost: CostModel) -> Floats:
            places = (tokens, unions, self.batch, self.context)
            return cost.forward.step_cost_us(*places)

        steps = [step_us(cost) for cost in (self.fitted.cost, *self.fitted.replicates)]
        low, high = interval(steps[1:])
        low_times, high_times = interval([step / step[0] for step in steps[1:]])
        return tuple(
            Ratio(
                width=width,
                step_us=float(steps[0][i]),
                step_low_us=float(low[i]),
                step_high_us=float(high[i]),
                times=float(steps[0][i] / steps[0][0]),
                times_low=float(low_times[i]),
                times_high=float(high_times[i]),
                union=float(unions[i]),
            )
            for i, width in enumerate(self.widths)
        )

    def _layers_us(self, cost: CostModel, widths: Floats, unions: Floats) -> Floats:
        size = np.ones(len(widths))
        tokens = widths.astype(np.float64) * self.batch
        places = (tokens, unions, self.context * size, self.batch * size)
        return cost.layers.latency_us(features_at(cost.model.price_shape, *places))
