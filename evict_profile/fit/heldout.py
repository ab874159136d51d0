"""How wrong a fit is on cells it has not seen.

Whole cells are held out, and the knots are chosen anew without them: an error that
lets the knots see the test cells is no held-out error.
"""

from dataclasses import dataclass

import numpy as np

from evict_profile.config import ModelSpec
from evict_profile.fit.points import Points
from evict_profile.fit.rivals import FITTERS, Fitter
from evict_profile.stats import ErrorSummary, Floats, summarise_errors

FOLDS = 10


@dataclass(frozen=True)
class HeldOut:
    """Predictions of each cell by a fit that did not see it."""

    points: Points
    predicted_us: Floats

    @property
    def error(self) -> ErrorSummary:
        """Summary of the relative errors."""
        return summarise_errors(self.predicted_us, self.points.latency_us)


def held_out(fitter: Fitter, model: ModelSpec, points: Points, seed: int) -> HeldOut:
    """Ten-fold cross-validation over cells, folds drawn by the seed."""
    folds = min(FOLDS, len(points))
    fold = np.random.default_rng(seed).permutation(len(points)) % folds
    predicted = np.empty(len(points))
    for number in range(folds):
        predict = fitter(model, points.take(fold != number))
        test = points.take(fold == number)
        predicted[fold == number] = predict(test.cells)
    return HeldOut(points, predicted)


def compare_fits(model: ModelSpec, points: Points, seed: int) -> dict[str, HeldOut]:
    """Held-out predictions of ours and of every rival, on the same folds."""
    return {
        name: held_out(fitter, model, points, seed) for name, fitter in FITTERS.items()
    }
