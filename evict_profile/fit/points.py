"""What a fit is made of: one median latency a cell, with its standard error."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from evict_profile.cells import DISTURBED_IQR_RATIO, Cell, frame_of, places_of
from evict_profile.cost_model import CostShape, Features, features_at
from evict_profile.stats import ErrorSummary, Floats, summarise_errors
from evict_profile.sweep.grid import Grid

MIN_RELATIVE_ERROR = 0.003
"""Floor of a median's relative standard error, so that no lucky cell rules a fit."""


def points_of(points: pd.DataFrame, part: str, split: str) -> pd.DataFrame:
    return points[(points["part"] == part) & (points["split"] == split)]


def undisturbed(points: pd.DataFrame) -> pd.DataFrame:
    largest = DISTURBED_IQR_RATIO * float(points["error"].min())
    return points[points["error"] < largest]


@dataclass(frozen=True)
class HeldOut:
    """Cells, and what a fit that did not see them predicts, float64 [cells]."""

    points: pd.DataFrame
    predicted_us: Floats

    @property
    def latency_us(self) -> Floats:
        return self.points["latency_us"].to_numpy()

    @property
    def error(self) -> ErrorSummary | None:
        if self.points.empty:
            return None
        return summarise_errors(self.predicted_us, self.latency_us)

    @property
    def excess_square(self) -> Floats:
        """Square of each relative error less that of its noise, float64 [cells]."""
        off = self.latency_us / self.predicted_us - 1.0
        excess: Floats = off**2 - self.points["error"].to_numpy() ** 2
        return excess


def split_points(
    cells: pd.DataFrame, grid: Grid, capture_sizes: Sequence[int]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What a fit is made of, and the validation cells, which it is not.

    A cell between the levels stands at the next captured width, which ran.
    """
    validation, levels = grid.validating(list(cells.index)), set(grid.cells)

    def as_run(cell: Cell) -> Cell:
        captured = (width for width in capture_sizes if width >= cell.width)
        at_level = cell in levels
        return cell if at_level else replace(cell, width=next(captured, cell.width))

    points = frame_of(map(as_run, cells.index)).assign(
        latency_us=cells["latency_us"].to_numpy(),
        error=np.maximum(cells["error"].to_numpy(), MIN_RELATIVE_ERROR),
        observed_union=cells["observed_union"].to_numpy(),
    )
    validates = cells.index.isin(validation)
    return points[~validates], points[validates]


def features_of(shape: CostShape, cells: pd.DataFrame) -> Features:
    return features_at(shape, *places_of(cells))
