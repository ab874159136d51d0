"""What a fit is made of: one median latency a cell, with its standard error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evict_profile.cells import Cell, arrays_of
from evict_profile.config import ModelSpec
from evict_profile.pricing import Features, features_at
from evict_profile.stats import Floats

SMALLEST_RELATIVE_ERROR = 0.003
"""Floor of a median's relative standard error, so that no lucky cell rules a fit."""

MEDIAN_ERROR_OVER_IQR = 0.93
"""Standard error of a median is about 0.93 IQR / sqrt(n) (McGill et al., 1978)."""


@dataclass(frozen=True)
class Points:
    """Cells with their latencies.

    Attributes:
        cells: one a point.
        latency_us: medians, float64 [points].
        relative_error: standard error of each median over it, float64 [points].
    """

    cells: tuple[Cell, ...]
    latency_us: Floats
    relative_error: Floats

    def __len__(self) -> int:
        return len(self.cells)

    def take(self, index: np.ndarray) -> "Points":
        """The points at these positions, or where a mask is true."""
        chosen = np.arange(len(self))[index]
        return Points(
            tuple(self.cells[i] for i in chosen),
            self.latency_us[chosen],
            self.relative_error[chosen],
        )

    def where(self, part: str, split: str) -> "Points":
        """The points of one part and split."""
        own = [c.part == part and c.split == split for c in self.cells]
        return self.take(np.array(own, dtype=bool))

    def redraw(self, rng: np.random.Generator) -> "Points":
        """Cells drawn anew with replacement, their medians moved by their errors."""
        if not len(self):
            return self
        drawn = self.take(rng.integers(0, len(self), len(self)))
        noise = 1.0 + drawn.relative_error * rng.standard_normal(len(self))
        return Points(drawn.cells, drawn.latency_us * noise, drawn.relative_error)


def points_of(latencies: Mapping[Cell, Sequence[float]]) -> Points:
    """One point a cell that has latencies, in the order of the cells."""
    cells = tuple(sorted(cell for cell, values in latencies.items() if values))
    stats = [_median_and_error(np.asarray(latencies[c])) for c in cells]
    medians, errors = (np.array(column) for column in zip(*stats, strict=True))
    return Points(cells, medians, errors)


def _median_and_error(values: Floats) -> tuple[float, float]:
    low, median, high = np.percentile(values, [25, 50, 75])
    error = MEDIAN_ERROR_OVER_IQR * (high - low) / np.sqrt(len(values)) / median
    return float(median), max(float(error), SMALLEST_RELATIVE_ERROR)


def features_of(model: ModelSpec, cells: Sequence[Cell]) -> Features:
    """Features of cells; see `pricing.features_at`."""
    axes = arrays_of(cells)
    places = (axes["tokens"], axes["union"], axes["context"], axes["batch"])
    return features_at(model.price_shape, *places)
