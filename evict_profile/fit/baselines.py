"""How wrong the hinge fit is on unseen cells, and the simpler models at their best.

Whole cells are held out, and the knots are chosen anew without them: an error that
lets the knots see the test cells is no held-out error.

tokens only: what start-up profilers know, any monotone function of tokens and cache.
affine: a + b U + c tokens, with lines in the cache. roofline: max(bytes / bandwidth,
operations / rate), both rates fitted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from evict_profile.cells import Cell
from evict_profile.config import ModelSpec
from evict_profile.cost_model import Term
from evict_profile.fit.hinge import LAYER_TERMS, Points, features_of, fit_points
from evict_profile.physics import layer_work
from evict_profile.stats import ErrorSummary, Floats, folds, summarise_errors

Predict = Callable[[Sequence[Cell]], Floats]
Fitter = Callable[[ModelSpec, Points], Predict]

FOLDS = 10
CACHE_TERMS = tuple(Term(name) for name in ("batch", "cache", "scores"))


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
    fold = folds(len(points), FOLDS, seed)
    predicted = np.empty(len(points))
    for number in np.unique(fold):
        predict = fitter(model, points.take(fold != number))
        test = points.take(fold == number)
        predicted[fold == number] = predict(test.cells)
    return HeldOut(points, predicted)


def compare_fits(model: ModelSpec, points: Points, seed: int) -> dict[str, HeldOut]:
    """Held-out predictions of the hinge fit and of every baseline, on equal folds."""
    return {
        name: held_out(fitter, model, points, seed) for name, fitter in FITTERS.items()
    }


def fit_hinge(model: ModelSpec, points: Points) -> Predict:
    """Hinges in every axis, knots by held-out error."""
    return _hinges(LAYER_TERMS, True, model, points)


def fit_tokens_only(model: ModelSpec, points: Points) -> Predict:
    """Any monotone function of tokens, and lines in the cache."""
    base = (Term("one"), Term("tokens"), *CACHE_TERMS)
    return _hinges(base, True, model, points)


def fit_affine(model: ModelSpec, points: Points) -> Predict:
    """One slope an axis."""
    base = (Term("one"), Term("union"), Term("tokens"), *CACHE_TERMS)
    return _hinges(base, False, model, points)


def fit_roofline(model: ModelSpec, points: Points) -> Predict:
    """Two rates, fitted to the mean absolute error of the log latency."""
    moved, flops = _work(model, points.cells)
    log_latency = np.log(points.latency_us)

    def loss(log_rates: Floats) -> float:
        floor = np.maximum(moved * np.exp(log_rates[0]), flops * np.exp(log_rates[1]))
        return float(np.abs(np.log(floor) - log_latency).mean())

    start = np.log(np.median(points.latency_us / np.stack([moved, flops]), axis=1))
    best = minimize(loss, start, method="Nelder-Mead").x

    def predict(cells: Sequence[Cell]) -> Floats:
        bytes_moved, operations = _work(model, cells)
        by_memory, by_rate = bytes_moved * np.exp(best[0]), operations * np.exp(best[1])
        floor: Floats = np.maximum(by_memory, by_rate)
        return floor

    return predict


FITTERS: dict[str, Fitter] = {
    "hinge": fit_hinge,
    "affine": fit_affine,
    "roofline": fit_roofline,
    "tokens only": fit_tokens_only,
}


def _hinges(
    base: tuple[Term, ...], bends: bool, model: ModelSpec, points: Points
) -> Predict:
    cost = fit_points(base, model, points, bends)
    return lambda cells: cost.latency_us(features_of(model, cells))


def _work(model: ModelSpec, cells: Sequence[Cell]) -> tuple[Floats, Floats]:
    work = [layer_work(model, cell) for cell in cells]
    moved = np.array([w.bytes_moved for w in work])
    return moved, np.array([w.flops for w in work])
