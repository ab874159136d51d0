"""Is the fit of a sweep's samples so far wrong between its levels?"""

from dataclasses import dataclass

import numpy as np

from evict_profile.config import ModelSpec
from evict_profile.fit.hinge import BOOTSTRAP_SEED, bootstrap, fit_cost
from evict_profile.fit.points import features_of, split_points
from evict_profile.fit.unseen import UnseenCells
from evict_profile.sweep.grid import Grid
from evict_profile.sweep.plan import History


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

    def misfit(self, history: History) -> float:
        """Relative error at the validation cells that is shown to be no noise."""
        points, apart = split_points(history, self.grid, self.ladder)
        cost = fit_cost(points, self.model, self.measured_layers)
        unseen = UnseenCells(apart.calm, features_of(cost.shape, apart.calm.cells))
        misses = unseen.misses(cost, bootstrap(cost, points, BOOTSTRAP_SEED))
        return float(np.sqrt(max(misses.shown(), 0.0)))
