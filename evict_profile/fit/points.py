"""What a fit is made of: one median latency a cell, with its standard error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evict_profile.cells import Cell, arrays_of
from evict_profile.cost_model import Features, Shape, features_at
from evict_profile.stats import Bools, ErrorSummary, Floats, Ints, summarise_errors
from evict_profile.sweep.grid import Grid
from evict_profile.sweep.medians import MUCH_FURTHER, medians_of

MIN_RELATIVE_ERROR = 0.003
"""Floor of a median's relative standard error, so that no lucky cell rules a fit."""


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

    @property
    def calm(self) -> "Points":
        """Without disturbed cells, whose medians say little of what they cost."""
        if not len(self):
            return self
        return self.take(self.relative_error < MUCH_FURTHER * self.relative_error.min())


@dataclass(frozen=True)
class Unseen:
    """Cells, and what a fit that did not see them predicts, float64 [cells]."""

    points: Points
    predicted_us: Floats

    @property
    def error(self) -> ErrorSummary | None:
        """Summary of the relative errors; None without cells."""
        if not len(self.points):
            return None
        return summarise_errors(self.predicted_us, self.points.latency_us)

    @property
    def excess_square(self) -> Floats:
        """Square of each relative error less that of its noise, float64 [cells]."""
        off = self.points.latency_us / self.predicted_us - 1.0
        excess: Floats = off**2 - self.points.relative_error**2
        return excess


def points_of(latencies: Mapping[Cell, Sequence[float]]) -> Points:
    """One point a cell that has latencies, in the order of the cells."""
    cells, latency_us, error = medians_of(latencies)
    return Points(cells, latency_us, np.maximum(error, MIN_RELATIVE_ERROR))


def split_points(
    latencies: Mapping[Cell, Sequence[float]], grid: Grid, capture_sizes: Sequence[int]
) -> tuple[Points, Points]:
    """What a fit is made of, and the validation cells, which it is not.

    Cells between the levels of the grid stand at the width that ran: the next one
    captured.
    """
    points, apart = points_of(latencies), grid.validating(latencies)
    levels = set(grid.cells)

    def as_run(cell: Cell) -> Cell:
        captured = (width for width in capture_sizes if width >= cell.width)
        own = cell in levels
        return cell if own else replace(cell, width=next(captured, cell.width))

    validates = np.array([c in apart for c in points.cells], dtype=np.bool_)
    ran = replace(points, cells=tuple(map(as_run, points.cells)))
    return ran.take(~validates), ran.take(validates)


def features_of(shape: Shape, cells: Sequence[Cell]) -> Features:
    """Features of cells; see `features_at`."""
    axes = arrays_of(cells)
    places = (axes["tokens"], axes["union"], axes["context"], axes["batch"])
    return features_at(shape, *places)
