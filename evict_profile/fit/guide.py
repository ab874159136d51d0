"""Where would more measurements serve? What a fit of a sweep's samples so far says.

An adaptive sweep asks where the fit is least sure; every sweep with validation cells
asks whether the fit is wrong between its levels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evict_profile.cells import Cell
from evict_profile.config import ModelSpec
from evict_profile.fit.baselines import FITTERS, held_out
from evict_profile.fit.fitted import part_us
from evict_profile.fit.hinge import (
    ENSEMBLE_SEED,
    FIT_SPLIT,
    bootstrap,
    ensemble,
    fit_cost,
)
from evict_profile.fit.points import features_of, split_points
from evict_profile.fit.unseen import UnseenCells
from evict_profile.sweep.grid import Grid
from evict_profile.sweep.plan import History, Uncertainty


@dataclass(frozen=True)
class Guide:
    """Fits what a sweep has; see `sweep.plan.FitGuide`.

    Attributes:
        model, measured_layers, ladder: what the runner opened.
        grid: the cells of the sweep.
    """

    model: ModelSpec
    measured_layers: int
    ladder: tuple[int, ...]
    grid: Grid

    def uncertainty(self, history: History, cells: Sequence[Cell]) -> Uncertainty:
        """Held-out error, and the spread of the bootstrap ensemble cell by cell."""
        points, _ = split_points(history, self.grid, self.ladder)
        cost = fit_cost(points, self.model, self.measured_layers)
        forced = points.where("layers", FIT_SPLIT)
        error = held_out(FITTERS["hinge"], self.model, forced, ENSEMBLE_SEED).error
        others = np.stack([part_us(other, cells) for other in ensemble(cost, points)])
        spread = others.std(axis=0) / others.mean(axis=0)
        return Uncertainty(error, dict(zip(cells, spread.tolist(), strict=True)))

    def misfit(self, history: History) -> float:
        """Relative error at the validation cells that is shown to be no noise."""
        points, apart = split_points(history, self.grid, self.ladder)
        cost = fit_cost(points, self.model, self.measured_layers)
        unseen = UnseenCells(apart.calm, features_of(cost.shape, apart.calm.cells))
        misses = unseen.misses(cost, bootstrap(cost, points, ENSEMBLE_SEED))
        return float(np.sqrt(max(misses.shown(), 0.0)))
