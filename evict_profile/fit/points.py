"""What a fit is made of: one median latency a cell, with its standard error."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from evict_profile.cells import Cell, arrays_of
from evict_profile.cost_model import Features, Shape, features_at
from evict_profile.stats import Bools, Floats, Ints, median_of_draws

MIN_RELATIVE_ERROR = 0.003
"""Floor of a median's relative standard error, so that no lucky cell rules a fit."""

MUCH_FURTHER, FAR_OUTSIDE = 3.0, 5.0
"""In interquartile ranges of the pooled samples."""

MIN_POOLED = 100
"""Of fewer samples the shape is not known well enough to correct anything by it."""


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

    def take(self, index: Ints | Bools) -> "Points":
        """The points at these positions, or where a mask is true."""
        chosen = np.arange(len(self))[index]
        return Points(
            tuple(self.cells[i] for i in chosen),
            self.latency_us[chosen],
            self.relative_error[chosen],
        )

    def where(self, part: str, split: str) -> "Points":
        """The points of one part and split."""
        mask = [c.part == part and c.split == split for c in self.cells]
        return self.take(np.array(mask, dtype=np.bool_))

    def among(self, cells: Collection[Cell]) -> "Points":
        """The points of these cells."""
        return self.take(np.array([c in cells for c in self.cells], dtype=np.bool_))

    def without(self, cells: Collection[Cell]) -> "Points":
        """The points of all other cells."""
        return self.take(np.array([c not in cells for c in self.cells], np.bool_))

    @property
    def calm(self) -> "Points":
        """Without disturbed cells, whose medians say little of what they cost."""
        if not len(self):
            return self
        return self.take(self.relative_error < MUCH_FURTHER * self.relative_error.min())

    def redraw(self, rng: np.random.Generator) -> "Points":
        """Cells drawn anew with replacement, their medians moved by their errors."""
        drawn = self.take(rng.integers(0, len(self), len(self)))
        noise = 1.0 + drawn.relative_error * rng.standard_normal(len(self))
        return replace(drawn, latency_us=drawn.latency_us * noise)


class Observations(NamedTuple):
    """What a fit is made of: features, latency and its relative error, each [cells]."""

    features: Features
    latency_us: Floats
    error: Floats

    def take(self, mask: Bools) -> "Observations":
        """Those where a mask is true."""
        features = {name: values[mask] for name, values in self.features.items()}
        return Observations(features, self.latency_us[mask], self.error[mask])


def points_of(latencies: Mapping[Cell, Sequence[float]]) -> Points:
    """One point a cell that has latencies, in the order of the cells.

    The cells of a part share one relative spread: the few samples of a cell say little
    of its own, and weights by that let lucky cells rule the fit.
    """
    cells = tuple(sorted(cell for cell, values in latencies.items() if values))
    latency_us, error = np.empty((2, len(cells)))
    parts = np.array([c.part for c in cells])
    for part in np.unique(parts):
        index = np.flatnonzero(parts == part)
        samples = [np.asarray(latencies[cells[i]]) for i in index]
        latency_us[index], error[index] = _medians_and_errors(samples)
    return Points(cells, latency_us, np.maximum(error, MIN_RELATIVE_ERROR))


def _medians_and_errors(cells: Sequence[Floats]) -> tuple[Floats, Floats]:
    """The median of each cell's samples, and its relative standard error.

    Both from the pooled shape: where it is skewed, medians of few samples lie off its
    own, and are brought to it. A cell whose samples lie much further apart than others'
    was disturbed, and has an error as much larger.
    """
    counts = np.array([len(samples) for samples in cells])
    low, medians, high = np.array([np.percentile(c, [25, 50, 75]) for c in cells]).T
    shape = _pooled_shape(np.concatenate(cells) / np.repeat(medians, counts))
    own = np.percentile(shape, [25, 75])
    apart = (high - low) / medians / max(float(np.ptp(own)), 1e-12)
    disturbed = np.where(apart > MUCH_FURTHER, apart, 1.0)
    means, errors = np.array([median_of_draws(shape, n) for n in counts]).T
    # The median that samples are divided by has taken one of their degrees of freedom.
    errors *= np.sqrt(counts / np.maximum(counts - 1, 1))
    known = len(shape) >= MIN_POOLED
    shift = means - np.median(shape) if known else np.zeros(len(cells))
    return medians / (1.0 + shift), errors * disturbed


def _pooled_shape(relative: Floats) -> Floats:
    """Samples over their cells' medians, less what lies far outside all others."""
    low, middle, high = np.percentile(relative, [25, 50, 75])
    reach = FAR_OUTSIDE * (high - low)
    return relative[np.abs(relative - middle) <= reach] if reach else relative


def features_of(shape: Shape, cells: Sequence[Cell]) -> Features:
    """Features of cells; see `features_at`."""
    axes = arrays_of(cells)
    places = (axes["tokens"], axes["union"], axes["context"], axes["batch"])
    return features_at(shape, *places)
