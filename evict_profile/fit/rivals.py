"""The simpler models that a table is compared with, each fitted at its best.

tokens only: what start-up profilers know, any monotone function of tokens and cache.
affine: a + b U + c tokens, with lines in the cache. roofline: max(bytes / bandwidth,
operations / rate), both rates fitted.
"""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import minimize

from evict_profile.cells import Cell
from evict_profile.config import ModelSpec
from evict_profile.fit.knots import LAYER_TERMS, choose_terms
from evict_profile.fit.points import Points, features_of
from evict_profile.fit.ramps import fit_ramps
from evict_profile.physics import layer_work
from evict_profile.pricing import Term
from evict_profile.stats import Floats

Predict = Callable[[Sequence[Cell]], Floats]
Fitter = Callable[[ModelSpec, Points], Predict]

CACHE_TERMS = tuple(Term(name) for name in ("batch", "cache", "scores"))


def fit_ours(model: ModelSpec, points: Points) -> Predict:
    """Ramps in every axis, knots by held-out error."""
    return _ramps(LAYER_TERMS, True, model, points)


def fit_tokens_only(model: ModelSpec, points: Points) -> Predict:
    """Any monotone function of tokens, and lines in the cache."""
    base = (Term("one"), Term("tokens"), *CACHE_TERMS)
    return _ramps(base, True, model, points)


def fit_affine(model: ModelSpec, points: Points) -> Predict:
    """One slope an axis."""
    base = (Term("one"), Term("union"), Term("tokens"), *CACHE_TERMS)
    return _ramps(base, False, model, points)


def fit_roofline(model: ModelSpec, points: Points) -> Predict:
    """Two rates, fitted to the median relative error's robust cousin, log error."""
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
    "ours": fit_ours,
    "affine": fit_affine,
    "roofline": fit_roofline,
    "tokens only": fit_tokens_only,
}


def _ramps(
    base: tuple[Term, ...], bends: bool, model: ModelSpec, points: Points
) -> Predict:
    features = features_of(model, points.cells)
    measured = (features, points.latency_us, points.relative_error)
    terms = choose_terms(base, *measured) if bends else base
    cost = fit_ramps(terms, *measured)
    return lambda cells: cost.latency_us(features_of(model, cells))


def _work(model: ModelSpec, cells: Sequence[Cell]) -> tuple[Floats, Floats]:
    work = [layer_work(model, cell) for cell in cells]
    moved = np.array([w.bytes_moved for w in work])
    return moved, np.array([w.flops for w in work])
