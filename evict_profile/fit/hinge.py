"""C(n, U, context, batch): a model's verification cost as a sum of hinges, fitted.

From samples to a cost with intervals, in five steps: one median latency a cell
(`points_of`), non-negative least squares on a given set of hinges (`fit_hinges`), the
choice of knots (`choose_terms`), both parts of a model (`fit_cost`), and refits that
say how sure the result is (`bootstrap`, `ensemble`).

The MoE layers and the rest of a model (embedding, dense layers, head: the cells of part
"non_moe") are measured and fitted apart. MoE layers are alike and run one after
another, so a forward costs `moe_layers / layers measured` times the first plus the
second. Where whole forwards were measured, the first holds everything and the second
costs nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import nnls

from evict_profile.cells import Cell, Split, arrays_of
from evict_profile.config import ModelSpec
from evict_profile.cost_model import (
    EXPERT_ROWS,
    Features,
    ForwardCost,
    HingeCost,
    Shape,
    Term,
    design,
    features_at,
)
from evict_profile.stats import Bools, Floats, Ints, folds

MIN_RELATIVE_ERROR = 0.003
"""Floor of a median's relative standard error, so that no lucky cell rules a fit."""

MEDIAN_ERROR_OVER_IQR = 0.93
"""Standard error of a median is about 0.93 IQR / sqrt(n) (McGill et al., 1978)."""

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

FREE = HingeCost((Term("one"),), np.zeros(1))
"""The rest of the model where whole forwards were measured, which hold it."""

MAX_KNOTS = 10
STANDARD_ERRORS = 1.0
FOLDS = 8

FIT_SPLIT: Split = "balanced"
"""The split that is priced; others measure how much the split itself matters."""

BOOTSTRAPS = 200
INTERVAL = (2.5, 97.5)
MIN_SHARE = 0.05
"""A bootstrap latency stays above this share of its prediction: never negative."""

ENSEMBLE = 40
ENSEMBLE_SEED = 0


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

    def redraw(self, rng: np.random.Generator) -> "Points":
        """Cells drawn anew with replacement, their medians moved by their errors."""
        drawn = self.take(rng.integers(0, len(self), len(self)))
        noise = 1.0 + drawn.relative_error * rng.standard_normal(len(self))
        return replace(drawn, latency_us=drawn.latency_us * noise)


def points_of(latencies: Mapping[Cell, Sequence[float]]) -> Points:
    """One point a cell that has latencies, in the order of the cells."""
    cells = tuple(sorted(cell for cell, values in latencies.items() if values))
    quartiles = np.array([np.percentile(latencies[c], [25, 50, 75]) for c in cells])
    low, median, high = quartiles.T
    counts = np.array([len(latencies[c]) for c in cells])
    error = MEDIAN_ERROR_OVER_IQR * (high - low) / np.sqrt(counts) / median
    return Points(cells, median, np.maximum(error, MIN_RELATIVE_ERROR))


def features_of(shape: Shape, cells: Sequence[Cell]) -> Features:
    """Features of cells; see `features_at`."""
    axes = arrays_of(cells)
    places = (axes["tokens"], axes["union"], axes["context"], axes["batch"])
    return features_at(shape, *places)


def fit_hinges(
    terms: Sequence[Term], features: Features, latency_us: Floats, error: Floats
) -> HingeCost:
    """Non-negative least squares on relative residuals over `error` [cells].

    More work never costs less, so non-negative least squares (Lawson & Hanson, 1974)
    is the right estimator of a sum of hinges, and needs no other regularisation.
    """
    scale = 1.0 / (latency_us * error)
    matrix = design(terms, features) * scale[:, None]
    # Columns differ by orders of magnitude; NNLS stops early unless they are levelled.
    size = np.linalg.norm(matrix, axis=0)
    size[size == 0.0] = 1.0
    solution, _ = nnls(matrix / size, latency_us * scale)
    return HingeCost(tuple(terms), solution / size)


def choose_terms(
    base: tuple[Term, ...], features: Features, latency_us: Floats, error: Floats
) -> tuple[Term, ...]:
    """Split terms greedily, knot by knot, while cross-validation says that it pays.

    Candidates are the measured values of each axis, the captured graph widths among
    them, and powers of two of the rows per expert. A knot is kept only if it lowers
    the cross-validated error by more than that gain's own standard error (the
    one-standard-error rule of Breiman et al., 1984, on paired cells), so that noise
    alone buys none.
    """
    terms = base
    errors = cross_validated(terms, features, latency_us, error)
    for _ in range(MAX_KNOTS):
        scored = [
            (cross_validated(option, features, latency_us, error), option)
            for option in refinements(terms, features)
        ]
        if not scored:
            break
        finer, option = min(scored, key=lambda pair: float(pair[0].mean()))
        gains = errors - finer
        noise = gains.std(ddof=1) / np.sqrt(len(gains))
        # Not `<=`: one cell alone has no noise, and NaN buys no knot.
        if not gains.mean() > STANDARD_ERRORS * noise:
            break
        errors, terms = finer, option
    return terms


def refinements(
    terms: tuple[Term, ...], features: Features
) -> Iterator[tuple[Term, ...]]:
    """Every way to split one term at one knot strictly inside it."""
    for position, term in enumerate(terms):
        for knot in candidate_knots(term.feature, features):
            if term.low < knot < term.high:
                yield (*terms[:position], *split(term, knot), *terms[position + 1 :])


def split(term: Term, knot: float) -> tuple[Term, Term]:
    """The two hinges that a knot inside a term makes of it."""
    left = Term(term.feature, term.low, knot)
    return left, Term(term.feature, knot, term.high)


def candidate_knots(feature: str, features: Features) -> list[float]:
    """Values at which a feature's cost may bend; none for those that must be lines."""
    if feature == EXPERT_ROWS:
        largest = features["rows"].max(initial=1.0)
        return [float(2**i) for i in range(int(np.log2(max(largest, 1.0))) + 1)]
    if feature not in {"tokens", "union"}:
        return []
    inner: list[float] = np.unique(features[feature])[1:-1].tolist()
    return inner


def cross_validated(
    terms: tuple[Term, ...], features: Features, latency_us: Floats, error: Floats
) -> Floats:
    """Absolute relative error of each cell when its fold is held out, [cells]."""
    fold = folds(len(latency_us), FOLDS)
    predicted = np.empty(len(latency_us))
    for number in np.unique(fold):
        train, test = (
            {name: values[mask] for name, values in features.items()}
            for mask in (fold != number, fold == number)
        )
        seen = fold != number
        cost = fit_hinges(terms, train, latency_us[seen], error[seen])
        predicted[~seen] = cost.latency_us(test)
    errors: Floats = np.abs(predicted / latency_us - 1.0)
    return errors


def fit_points(
    base: tuple[Term, ...], shape: Shape, points: Points, bends: bool = True
) -> HingeCost:
    """Fit terms to points, with knots added where they pay if the terms may bend."""
    features = features_of(shape, points.cells)
    measured = (features, points.latency_us, points.relative_error)
    return fit_hinges(choose_terms(base, *measured) if bends else base, *measured)


def fit_cost(points: Points, model: ModelSpec, measured_layers: int) -> ForwardCost:
    """Choose knots and fit both parts."""
    shape, layer_scale = model.price_shape, model.moe_layers / measured_layers
    rest_terms = HEAD_TERMS + (DENSE_TERMS if model.dense_layers else ())
    layers, rest = parts_of(points)
    return ForwardCost(
        shape,
        fit_points(LAYER_TERMS, shape, layers),
        fit_points(rest_terms, shape, rest) if len(rest) else FREE,
        layer_scale,
    )


def parts_of(points: Points) -> tuple[Points, Points]:
    """The points that the fits of the MoE layers and of the rest are made of."""
    return points.where("layers", FIT_SPLIT), points.where("non_moe", "natural")


def bootstrap(
    fitted: ForwardCost, points: Points, seed: int, count: int = BOOTSTRAPS
) -> list[ForwardCost]:
    """Refits with the same knots, each cell's residual with a random sign.

    The wild bootstrap (Wu, 1986): cells were chosen, not drawn, so each stays in
    every replicate, at its prediction plus or minus its residual. Residuals hold the
    noise of the medians and the misfit of the form alike, and are widened by the
    degrees of freedom that the fit took.
    """
    rng = np.random.default_rng(seed)

    def flip_signs(cost: HingeCost, points: Points) -> Points:
        predicted = cost.latency_us(features_of(fitted.shape, points.cells))
        free = len(points) - int(np.count_nonzero(cost.us_per_unit))
        widen = np.sqrt(len(points) / max(1, free))
        residual = (points.latency_us - predicted) * widen
        moved = predicted + residual * rng.choice([-1.0, 1.0], len(points))
        return replace(points, latency_us=np.maximum(moved, MIN_SHARE * predicted))

    return _refits(fitted, points, count, flip_signs)


def interval(replicates: Sequence[Floats]) -> tuple[Floats, Floats]:
    """The 95 % bootstrap interval of predictions, each [cells]."""
    low, high = np.percentile(np.stack(replicates), INTERVAL, axis=0)
    return low, high


def ensemble(fitted: ForwardCost, points: Points) -> list[ForwardCost]:
    """Refits with the same knots on redrawn cells and redrawn medians.

    They differ most where the cells around decide least: where a measurement would
    teach most (query by committee, Seung et al., 1992).
    """
    rng = np.random.default_rng(ENSEMBLE_SEED)
    return _refits(fitted, points, ENSEMBLE, lambda _, part: part.redraw(rng))


def _refits(
    fitted: ForwardCost,
    points: Points,
    count: int,
    resample: Callable[[HingeCost, Points], Points],
) -> list[ForwardCost]:
    """Fits of the same terms to resampled points; a part without points stays."""

    def refit(cost: HingeCost, part: Points) -> HingeCost:
        if not len(part):
            return cost
        return fit_points(cost.terms, fitted.shape, resample(cost, part), bends=False)

    layers, rest = parts_of(points)
    costs = [
        (refit(fitted.layers, layers), refit(fitted.non_moe, rest))
        for _ in range(count)
    ]
    return [ForwardCost(fitted.shape, *parts, fitted.layer_scale) for parts in costs]
