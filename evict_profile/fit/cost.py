"""C(n, U, context, batch): what a whole model's verification costs, with intervals.

Measured are some MoE layers and, apart from them, the ends (embedding, dense layers,
head). A model's layers are alike and run one after another, so the model costs
`moe_layers / layers measured` times the one plus the other.

Where whole forwards were measured, all layers of the model and its ends are in the one,
whose terms hold those of the other, and the other costs nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evict_profile.cells import Cell, Split
from evict_profile.config import ModelSpec
from evict_profile.fit.knots import DENSE_TERMS, HEAD_TERMS, LAYER_TERMS, choose_terms
from evict_profile.fit.points import Points, features_of
from evict_profile.fit.ramps import fit_ramps
from evict_profile.pricing import ForwardCost, RampCost, Term
from evict_profile.stats import Floats

BOOTSTRAPS = 200
INTERVAL = (5.0, 95.0)
SMALLEST_SHARE = 0.05
"""A turned latency stays above this share of its prediction: never negative."""

NO_ENDS = RampCost((Term("one"),), np.zeros(1))
"""The ends of whole forwards, which are in the forwards."""

FIT_SPLIT: Split = "balanced"
"""The split that is priced; others measure how much the split itself matters."""


@dataclass(frozen=True)
class CostModel:
    """A fitted cost, for the layers measured and scaled to the whole model."""

    model: ModelSpec
    measured_layers: int
    layers: RampCost
    ends: RampCost

    @property
    def layer_scale(self) -> float:
        """Whole model over layers measured."""
        return self.model.moe_layers / self.measured_layers

    def layers_us(self, cells: Sequence[Cell]) -> Floats:
        """The measured layers' latency, float64 [cells]."""
        return self.layers.latency_us(features_of(self.model, cells))

    def ends_us(self, cells: Sequence[Cell]) -> Floats:
        """Latency of all but the MoE layers, float64 [cells]."""
        return self.ends.latency_us(features_of(self.model, cells))

    @property
    def forward(self) -> ForwardCost:
        """The whole model's verification forward."""
        return ForwardCost(
            self.model.price_shape, self.layers, self.ends, self.layer_scale
        )

    def us_per_expert(self, cell: Cell, largest_union: int) -> float:
        """Mean slope in U of one layer, from the cell's union to a larger one."""
        far = Cell(
            "layers", cell.width, largest_union, cell.context, cell.batch, FIT_SPLIT
        )
        low, high = self.layers_us([cell, far])
        return float(high - low) / (largest_union - cell.union) / self.measured_layers


def fit_cost(points: Points, model: ModelSpec, measured_layers: int) -> CostModel:
    """Choose knots and fit both parts."""
    ends_terms = HEAD_TERMS + (DENSE_TERMS if model.dense_layers else ())
    layers, ends = parts_of(points)
    return CostModel(
        model,
        measured_layers,
        _choose_and_fit(layers, LAYER_TERMS, model),
        _choose_and_fit(ends, ends_terms, model) if len(ends) else NO_ENDS,
    )


def parts_of(points: Points) -> tuple[Points, Points]:
    """The points that the layers' and the ends' fits are made of."""
    return points.where("layers", FIT_SPLIT), points.where("ends", "natural")


def bootstrap(
    fitted: CostModel, points: Points, seed: int, count: int = BOOTSTRAPS
) -> list[CostModel]:
    """Refits with the same knots, the residuals of each cell turned at random.

    The wild bootstrap (Wu, 1986): cells were chosen, not drawn, so each stays in
    every replicate, at its prediction plus or minus its residual. Residuals hold the
    noise of the medians and the misfit of the form alike.
    """
    rng = np.random.default_rng(seed)
    costs = (fitted.layers, fitted.ends)
    return [
        replace(fitted, layers=layers, ends=ends)
        for layers, ends in (
            [
                refit(fitted.model, _turned(fitted.model, own, cost, rng), cost)
                for own, cost in zip(parts_of(points), costs, strict=True)
            ]
            for _ in range(count)
        )
    ]


def interval(replicates: Sequence[Floats]) -> tuple[Floats, Floats]:
    """The 90 % bootstrap interval of predictions, each [cells]."""
    low, high = np.percentile(np.stack(replicates), INTERVAL, axis=0)
    return low, high


def refit(model: ModelSpec, points: Points, cost: RampCost) -> RampCost:
    """The same terms, fitted to other points; unchanged where there are none."""
    if not len(points):
        return cost
    features = features_of(model, points.cells)
    return fit_ramps(cost.terms, features, points.latency_us, points.relative_error)


def _choose_and_fit(
    points: Points, base: tuple[Term, ...], model: ModelSpec
) -> RampCost:
    features = features_of(model, points.cells)
    measured = (features, points.latency_us, points.relative_error)
    return fit_ramps(choose_terms(base, *measured), *measured)


def _turned(
    model: ModelSpec, points: Points, cost: RampCost, rng: np.random.Generator
) -> Points:
    predicted = cost.latency_us(features_of(model, points.cells))
    free = len(points) - int(np.count_nonzero(cost.us_per_unit))
    widen = np.sqrt(len(points) / max(1, free))
    residual = (points.latency_us - predicted) * widen
    turned = predicted + residual * rng.choice([-1.0, 1.0], len(points))
    return replace(points, latency_us=np.maximum(turned, SMALLEST_SHARE * predicted))
