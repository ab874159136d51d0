"""C(n, U, context, batch): a model's verification cost as a sum of hinges, fitted.

MoE layers are equal and run in sequence, so a forward costs `moe_layers / layers
measured` times their fit, plus the fit of the rest (embedding, dense layers, head).
Where whole forwards were measured, the first holds everything.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from evict_profile.cells import Split
from evict_profile.config import ModelSpec
from evict_profile.cost_model import (
    EXPERT_ROWS,
    CostShape,
    Features,
    ForwardCost,
    HingeCost,
    Term,
    design,
)
from evict_profile.fit.points import features_of, points_of
from evict_profile.stats import Floats, folds

LAYER_TERMS = (
    *(Term(name) for name in ("one", "union", "tokens", "batch", "cache", "scores")),
    *(
        Term(EXPERT_ROWS, low, high)
        for low, high in ((1, 2), (2, 4), (4, 8), (8, np.inf))
    ),
)
"""A MoE layer: launch, expert weights, dense rows, KV cache, and expert rows, which
bend from the start at powers of two: few rows are where kernels differ most, two bends
there often pay only together, and coefficients that are never negative drop the rest.
"""

HEAD_TERMS = tuple(Term(name) for name in ("one", "tokens"))
"""Embedding, norm and head: no experts, and no cache."""

DENSE_TERMS = tuple(Term(name) for name in ("batch", "cache", "scores"))
"""What attention in dense layers adds to the head."""

ZERO_COST = HingeCost((Term("one"),), np.zeros(1))
"""The rest of the model where whole forwards were measured, which hold it."""

ROW_KNOTS = sorted(
    {*range(1, 9), *(2**i + j for i in range(3, 11) for j in (-1, 0, 1))}
)
"""Rows of an expert at which a kernel may change: any few, and about powers of two."""

MAX_KNOTS = 10
SHORTLIST = 5
STANDARD_ERRORS = 2.0
FOLDS = 8

FIT_SPLIT: Split = "balanced"
"""The split that is fitted."""


class Observations:
    """What a fit is made of: features, latency and its relative error, each [cells]."""

    def __init__(self, features: Features, latency_us: Floats, error: Floats) -> None:
        self.features, self.latency_us, self.error = features, latency_us, error
        self._columns: dict[Term, Floats] = {}

    @classmethod
    def of(cls, shape: CostShape, points: pd.DataFrame) -> "Observations":
        latency_us, error = (points[n].to_numpy() for n in ("latency_us", "error"))
        return cls(features_of(shape, points), latency_us, error)

    def design(self, terms: Sequence[Term]) -> Floats:
        for term in {*terms} - {*self._columns}:
            self._columns[term] = term.values(self.features)
        return np.stack([self._columns[term] for term in terms], axis=1)


def fit_hinges(terms: Sequence[Term], seen: Observations) -> HingeCost:
    """Non-negative least squares (Lawson & Hanson, 1974), weighted by relative errors.

    More work never costs less, so it needs no other regularisation.
    """
    us, _ = _solve(seen.design(terms), seen.latency_us, seen.error)
    return HingeCost(tuple(terms), us)


def _solve(values: Floats, latency_us: Floats, error: Floats) -> tuple[Floats, float]:
    """Coefficients of term values [cells, terms], and the norm of the residuals."""
    scale = 1.0 / (latency_us * error)
    matrix = values * scale[:, None]
    # Columns differ by orders of magnitude; NNLS stops early unless they are levelled.
    size = column_sizes(matrix)
    solution, left = nnls(matrix / size, latency_us * scale)
    return solution / size, float(left)


def column_sizes(matrix: Floats) -> Floats:
    """Length of each column, 1 where it is zero, float64 [columns]."""
    size: Floats = np.linalg.norm(matrix, axis=0)
    size[size == 0.0] = 1.0
    return size


def choose_terms(base: tuple[Term, ...], seen: Observations) -> tuple[Term, ...]:
    """Split terms greedily, knot by knot, while cross-validation says that it pays.

    Candidates are the measured values of each axis, the captured graph widths, and
    powers of two of the rows per expert. A knot is kept only if it lowers the
    cross-validated error by more than that gain's own standard error (the
    one-standard-error rule of Breiman et al., 1984, on paired cells), so that noise
    alone adds none.
    """
    terms = base
    errors = cross_validated(terms, seen)
    for _ in range(MAX_KNOTS):
        scored = [
            (cross_validated(option, seen), option) for option in shortlist(terms, seen)
        ]
        if not scored:
            break
        finer, option = min(scored, key=lambda pair: float(pair[0].mean()))
        gains = errors - finer
        noise = gains.std(ddof=1) / np.sqrt(len(gains))
        # Not `<=`: one cell alone has no noise, and NaN adds no knot.
        if not gains.mean() > STANDARD_ERRORS * noise:
            break
        errors, terms = finer, option
    return terms


def shortlist(terms: tuple[Term, ...], seen: Observations) -> list[tuple[Term, ...]]:
    def residual(option: tuple[Term, ...]) -> float:
        return _solve(seen.design(option), seen.latency_us, seen.error)[1]

    options = sorted(refinements(terms, seen.features), key=residual)
    bends = [option for option in options if len(option) == len(terms) + 1]
    jumps = [option for option in options if len(option) > len(terms) + 1]
    return bends[:SHORTLIST] + jumps[:SHORTLIST]


def refinements(
    terms: tuple[Term, ...], features: Features
) -> Iterator[tuple[Term, ...]]:
    for position, term in enumerate(terms):
        for knots in candidate_knots(term.feature, features):
            if term.low < knots[0] and knots[-1] < term.high:
                bounds = (term.low, *knots, term.high)
                pieces = (Term(term.feature, *ends) for ends in pairwise(bounds))
                yield (*terms[:position], *pieces, *terms[position + 1 :])


def candidate_knots(feature: str, features: Features) -> list[tuple[float, ...]]:
    """Where a feature's cost may bend, or jump: two bends, where neither pays alone."""
    if feature == EXPERT_ROWS:
        largest = features["rows"].max(initial=1.0)
        rows = [float(x) for x in ROW_KNOTS if x <= largest]
        return [(x,) for x in rows] + list(pairwise(rows))
    if feature not in {"tokens", "union"}:
        return []
    inner: list[float] = np.unique(features[feature])[1:-1].tolist()
    return [(x,) for x in inner] + list(pairwise(inner))


def cross_validated(terms: tuple[Term, ...], seen: Observations) -> Floats:
    """Absolute relative error of each cell when its fold is held out, [cells]."""
    values, latency_us = seen.design(terms), seen.latency_us
    fold = folds(len(latency_us), FOLDS)
    predicted = np.empty(len(latency_us))
    for number in np.unique(fold):
        test, kept = fold == number, fold != number
        us, _ = _solve(values[kept], latency_us[kept], seen.error[kept])
        predicted[test] = values[test] @ us
    errors: Floats = np.abs(predicted / latency_us - 1.0)
    return errors


def fit_points(
    base: tuple[Term, ...], shape: CostShape, points: pd.DataFrame, bends: bool = True
) -> HingeCost:
    seen = Observations.of(shape, points)
    terms = choose_terms(base, seen) if bends else base
    first = fit_hinges(terms, seen)
    # Relative to predictions: over its own median, a cell measured low weighs more.
    seen.error = seen.error * first.latency_us(seen.features) / seen.latency_us
    return fit_hinges(terms, seen)


def fit_cost(
    points: pd.DataFrame,
    model: ModelSpec,
    measured_layers: int,
    more_terms: tuple[Term, ...] = (),
) -> ForwardCost:
    shape, layer_scale = model.cost_shape, model.moe_layers / measured_layers
    layers, rest = parts_of(points)
    return ForwardCost(
        shape,
        fit_points((*layer_terms(shape), *more_terms), shape, layers),
        fit_points(rest_terms(model), shape, rest) if len(rest) else ZERO_COST,
        layer_scale,
    )


def layer_terms(shape: CostShape) -> tuple[Term, ...]:
    return LAYER_TERMS + (Term("width"),) * shape.recurs


def rest_terms(model: ModelSpec) -> tuple[Term, ...]:
    return HEAD_TERMS + (DENSE_TERMS if model.dense_layers else ())


def parts_of(points: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    layers = points_of(points, "layers", FIT_SPLIT)
    return layers, points_of(points, "non_moe", "natural")


class Uncertainty:
    def __init__(self, cost: HingeCost, shape: CostShape, points: pd.DataFrame) -> None:
        features = features_of(shape, points)
        predicted = cost.latency_us(features)
        error_us = predicted * points["error"].to_numpy()
        self._costs = cost.us_per_unit > 0.0
        active = design(cost.terms, features)[:, self._costs] / error_us[:, None]
        rest = (points["latency_us"].to_numpy() - predicted) / error_us
        sigma = np.linalg.norm(rest) / max(len(rest) - active.shape[1], 1) ** 0.5
        self._by_cell = sigma * np.linalg.pinv(active)

    def us(self, values: Floats) -> Floats:
        """Standard error of sums of term values [places, terms], float64 [places]."""
        error: Floats = np.linalg.norm(values[:, self._costs] @ self._by_cell, axis=1)
        return error
