"""C(n, U, context, batch): a model's verification cost as a sum of hinges, fitted.

From samples to a cost with intervals, in five steps: one median latency a cell
(`points_of`), non-negative least squares on a given set of hinges (`fit_hinges`), the
choice of knots (`choose_terms`), both parts of a model (`fit_cost`), and refits that
say how sure the result is (`bootstrap`, `ensemble`).

Measured are some MoE layers and, apart from them, the rest: embedding, dense layers
and head, which are the cells of part "non_moe". A model's layers are alike and run one
after another, so the model costs `moe_layers / layers measured` times the one plus the
other. Where whole forwards were measured, all layers of the model and its rest are in
the one, whose terms hold those of the other, and the other costs nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.optimize import nnls

from evict_profile.cells import Cell, Split, arrays_of
from evict_profile.config import ModelSpec
from evict_profile.cost_model import (
    EXPERT_ROWS,
    Features,
    ForwardCost,
    HingeCost,
    Term,
    design,
    features_at,
)
from evict_profile.stats import Floats, folds

SMALLEST_RELATIVE_ERROR = 0.003
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
"""What is beside the MoE layers where whole forwards were measured: in those."""

MOST_KNOTS = 10
STANDARD_ERRORS = 1.0
FOLDS = 8

FIT_SPLIT: Split = "balanced"
"""The split that is priced; others measure how much the split itself matters."""

BOOTSTRAPS = 200
INTERVAL = (2.5, 97.5)
SMALLEST_SHARE = 0.05
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

    def take(self, index: np.ndarray) -> "Points":
        """The points at these positions, or where a mask is true."""
        chosen = np.arange(len(self))[index]
        return Points(
            tuple(self.cells[i] for i in chosen),
            self.latency_us[chosen],
            self.relative_error[chosen],
        )

    def where(self, part: str, split: str) -> "Points":
        """The points of one part and split."""
        own = [c.part == part and c.split == split for c in self.cells]
        return self.take(np.array(own, dtype=bool))

    def redraw(self, rng: np.random.Generator) -> "Points":
        """Cells drawn anew with replacement, their medians moved by their errors."""
        drawn = self.take(rng.integers(0, len(self), len(self)))
        noise = 1.0 + drawn.relative_error * rng.standard_normal(len(self))
        return Points(drawn.cells, drawn.latency_us * noise, drawn.relative_error)


@dataclass(frozen=True)
class CostModel:
    """A fitted cost, for the layers measured and scaled to the whole model."""

    model: ModelSpec
    measured_layers: int
    layers: HingeCost
    non_moe: HingeCost

    @property
    def layer_scale(self) -> float:
        """Whole model over layers measured."""
        return self.model.moe_layers / self.measured_layers

    def layers_us(self, cells: Sequence[Cell]) -> Floats:
        """The measured layers' latency, float64 [cells]."""
        return self.layers.latency_us(features_of(self.model, cells))

    def non_moe_us(self, cells: Sequence[Cell]) -> Floats:
        """Latency of all but the MoE layers, float64 [cells]."""
        return self.non_moe.latency_us(features_of(self.model, cells))

    @property
    def forward(self) -> ForwardCost:
        """The whole model's verification forward."""
        return ForwardCost(
            self.model.price_shape, self.layers, self.non_moe, self.layer_scale
        )

    def us_per_expert(self, small: Cell, large: Cell) -> float:
        """Mean slope in U of one layer, from one cell to one of a larger union."""
        low, high = self.layers_us([small, large])
        return float(high - low) / (large.union - small.union) / self.measured_layers


def points_of(latencies: Mapping[Cell, Sequence[float]]) -> Points:
    """One point a cell that has latencies, in the order of the cells."""
    cells = tuple(sorted(cell for cell, values in latencies.items() if values))
    stats = [_median_and_error(np.asarray(latencies[c])) for c in cells]
    medians, errors = (np.array(column) for column in zip(*stats, strict=True))
    return Points(cells, medians, errors)


def features_of(model: ModelSpec, cells: Sequence[Cell]) -> Features:
    """Features of cells; see `features_at`."""
    axes = arrays_of(cells)
    places = (axes["tokens"], axes["union"], axes["context"], axes["batch"])
    return features_at(model.price_shape, *places)


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
    for _ in range(MOST_KNOTS):
        scored = [
            (cross_validated(option, features, latency_us, error), option)
            for option in refinements(terms, features)
        ]
        if not scored:
            break
        finer, option = min(scored, key=lambda pair: float(pair[0].mean()))
        if not is_worth(errors - finer):
            break
        errors, terms = finer, option
    return terms


def is_worth(gains: Floats) -> bool:
    """Whether the mean gain over cells stands out from its standard error."""
    noise = float(gains.std(ddof=1)) / np.sqrt(len(gains))
    return bool(gains.mean() > STANDARD_ERRORS * noise)


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
        train, test = fold != number, fold == number
        seen = (_rows(features, train), latency_us[train], error[train])
        predicted[test] = fit_hinges(terms, *seen).latency_us(_rows(features, test))
    errors: Floats = np.abs(predicted / latency_us - 1.0)
    return errors


def fit_cost(points: Points, model: ModelSpec, measured_layers: int) -> CostModel:
    """Choose knots and fit both parts."""
    rest_terms = HEAD_TERMS + (DENSE_TERMS if model.dense_layers else ())
    layers, rest = parts_of(points)
    return CostModel(
        model,
        measured_layers,
        fit_points(LAYER_TERMS, model, layers),
        fit_points(rest_terms, model, rest) if len(rest) else FREE,
    )


def parts_of(points: Points) -> tuple[Points, Points]:
    """The points that the fits of the MoE layers and of the rest are made of."""
    return points.where("layers", FIT_SPLIT), points.where("non_moe", "natural")


def fit_points(
    base: tuple[Term, ...], model: ModelSpec, points: Points, bends: bool = True
) -> HingeCost:
    """Fit terms to points, with knots added where they pay if the terms may bend."""
    features = features_of(model, points.cells)
    measured = (features, points.latency_us, points.relative_error)
    return fit_hinges(choose_terms(base, *measured) if bends else base, *measured)


def bootstrap(
    fitted: CostModel, points: Points, seed: int, count: int = BOOTSTRAPS
) -> list[CostModel]:
    """Refits with the same knots, each cell's residual with a random sign.

    The wild bootstrap (Wu, 1986): cells were chosen, not drawn, so each stays in
    every replicate, at its prediction plus or minus its residual. Residuals hold the
    noise of the medians and the misfit of the form alike.
    """
    rng = np.random.default_rng(seed)
    return _refits(fitted, points, count, partial(_flip_signs, rng, fitted.model))


def interval(replicates: Sequence[Floats]) -> tuple[Floats, Floats]:
    """The 95 % bootstrap interval of predictions, each [cells]."""
    low, high = np.percentile(np.stack(replicates), INTERVAL, axis=0)
    return low, high


def ensemble(fitted: CostModel, points: Points) -> list[CostModel]:
    """Refits with the same knots on redrawn cells and redrawn medians.

    They differ most where the cells around decide least: where a measurement would
    teach most (query by committee, Seung et al., 1992).
    """
    rng = np.random.default_rng(ENSEMBLE_SEED)
    return _refits(fitted, points, ENSEMBLE, lambda _, own: own.redraw(rng))


def _refits(
    fitted: CostModel,
    points: Points,
    count: int,
    resample: Callable[[HingeCost, Points], Points],
) -> list[CostModel]:
    """Fits of the same terms to resampled points; a part without points stays."""

    def refit(cost: HingeCost, own: Points) -> HingeCost:
        if not len(own):
            return cost
        return fit_points(cost.terms, fitted.model, resample(cost, own), bends=False)

    layers, rest = parts_of(points)
    return [
        replace(
            fitted,
            layers=refit(fitted.layers, layers),
            non_moe=refit(fitted.non_moe, rest),
        )
        for _ in range(count)
    ]


def _median_and_error(values: Floats) -> tuple[float, float]:
    low, median, high = np.percentile(values, [25, 50, 75])
    error = MEDIAN_ERROR_OVER_IQR * (high - low) / np.sqrt(len(values)) / median
    return float(median), max(float(error), SMALLEST_RELATIVE_ERROR)


def _rows(features: Features, mask: np.ndarray) -> dict[str, Floats]:
    return {name: values[mask] for name, values in features.items()}


def _flip_signs(
    rng: np.random.Generator, model: ModelSpec, cost: HingeCost, points: Points
) -> Points:
    """Each point at its prediction plus or minus its residual.

    Residuals are widened by the degrees of freedom that the fit took.
    """
    predicted = cost.latency_us(features_of(model, points.cells))
    free = len(points) - int(np.count_nonzero(cost.us_per_unit))
    widen = np.sqrt(len(points) / max(1, free))
    residual = (points.latency_us - predicted) * widen
    moved = predicted + residual * rng.choice([-1.0, 1.0], len(points))
    return replace(points, latency_us=np.maximum(moved, SMALLEST_SHARE * predicted))
