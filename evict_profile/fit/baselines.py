"""How wrong the hinge fit is on unseen cells, and the simpler models at their best.

Whole cells are held out, and the knots are chosen anew without them: an error that
lets the knots see the test cells is no held-out error.

tokens only: what start-up profilers know, any monotone function of tokens and cache.
affine: a + b U + c tokens, with lines in the cache. roofline: max(bytes / bandwidth,
operations / rate), both rates fitted.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from evict_profile.config import ModelSpec
from evict_profile.cost_model import Term
from evict_profile.fit.hinge import fit_points
from evict_profile.fit.points import HeldOut, features_of
from evict_profile.physics import layer_work
from evict_profile.stats import Floats, folds

Predict = Callable[[pd.DataFrame], Floats]
Fitter = Callable[[ModelSpec, pd.DataFrame], Predict]

FOLDS = 10
CACHE_TERMS = tuple(Term(name) for name in ("batch", "cache", "scores"))
TOKEN_TERMS = (Term("one"), Term("tokens"), *CACHE_TERMS)
AFFINE_TERMS = (Term("one"), Term("union"), Term("tokens"), *CACHE_TERMS)


def held_out(
    fitter: Fitter, model: ModelSpec, points: pd.DataFrame, seed: int
) -> HeldOut:
    """Ten-fold cross-validation over cells, folds drawn by the seed."""
    fold = folds(len(points), FOLDS, seed)
    predicted = np.empty(len(points))
    for number in np.unique(fold):
        predict = fitter(model, points[fold != number])
        predicted[fold == number] = predict(points[fold == number])
    return HeldOut(points, predicted)


def fit_terms(
    base: tuple[Term, ...], bends: bool, model: ModelSpec, points: pd.DataFrame
) -> Predict:
    shape = model.cost_shape
    cost = fit_points(base, shape, points, bends)
    return lambda cells: cost.latency_us(features_of(shape, cells))


def fit_roofline(model: ModelSpec, points: pd.DataFrame) -> Predict:
    """Two rates, fitted to the mean absolute error of the log latency."""

    def work(cells: pd.DataFrame) -> Floats:
        pairs = [layer_work(model, cell) for cell in cells.index]
        return np.array([(w.bytes_moved, w.flops) for w in pairs]).T

    def slower(parts: Floats, log_rates: Floats) -> Floats:
        floor: Floats = (parts * np.exp(log_rates)[:, None]).max(axis=0)
        return floor

    latency_us = points["latency_us"].to_numpy()
    measured, log_latency = work(points), np.log(latency_us)

    def loss(log_rates: Floats) -> float:
        return float(np.abs(np.log(slower(measured, log_rates)) - log_latency).mean())

    start = np.log(np.median(latency_us / measured, axis=1))
    best = minimize(loss, start, method="Nelder-Mead").x
    return lambda cells: slower(work(cells), best)


FITTERS: dict[str, Fitter] = {
    "affine": partial(fit_terms, AFFINE_TERMS, False),
    "roofline": fit_roofline,
    "tokens only": partial(fit_terms, TOKEN_TERMS, True),
}
