"""C(n, U, context, batch): what a whole model's verification costs, with intervals.

Measured are some MoE layers and, apart from them, the ends (embedding, dense layers,
head). A model's layers are alike and run one after another, so the model costs
`moe_layers / layers measured` times the one plus the other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from evict_profile.cells import Cell, Split
from evict_profile.config import ModelSpec
from evict_profile.fit.knots import DENSE_TERMS, HEAD_TERMS, LAYER_TERMS, choose_terms
from evict_profile.fit.points import Points, features_of
from evict_profile.fit.ramps import RampCost, fit_ramps
from evict_profile.stats import Floats

BOOTSTRAPS = 200
INTERVAL = (5.0, 95.0)
FIT_SPLIT: Split = "balanced"
"""The split that is priced; others measure how much the split itself matters."""

Price = Callable[[Sequence[Cell]], Floats]
"""Latency of part "layers" of cells, float64 [cells], in microseconds."""


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

    def verify_us(self, cells: Sequence[Cell]) -> Floats:
        """Latency of the whole model's verification forward, float64 [cells]."""
        return self.layer_scale * self.layers_us(cells) + self.ends_us(cells)

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
    parts = []
    for own, base in (
        (points.where("layers", FIT_SPLIT), LAYER_TERMS),
        (points.where("ends", "natural"), ends_terms),
    ):
        features = features_of(model, own.cells)
        terms = choose_terms(base, features, own.latency_us, own.relative_error)
        parts.append(fit_ramps(terms, features, own.latency_us, own.relative_error))
    return CostModel(model, measured_layers, *parts)


def bootstrap(
    fitted: CostModel, points: Points, seed: int, count: int = BOOTSTRAPS
) -> list[CostModel]:
    """Refits with the same knots on redrawn cells and redrawn medians.

    Redrawing cells carries the misfit of the model's form, redrawing medians the
    noise of the measurement.
    """
    rng = np.random.default_rng(seed)
    parts = (
        (points.where("layers", FIT_SPLIT), fitted.layers),
        (points.where("ends", "natural"), fitted.ends),
    )
    return [
        CostModel(
            fitted.model,
            fitted.measured_layers,
            *(_refit(fitted.model, own.redraw(rng), cost) for own, cost in parts),
        )
        for _ in range(count)
    ]


def interval(replicates: Sequence[Floats]) -> tuple[Floats, Floats]:
    """The 90 % bootstrap interval of predictions, each [cells]."""
    low, high = np.percentile(np.stack(replicates), INTERVAL, axis=0)
    return low, high


def _refit(model: ModelSpec, drawn: Points, cost: RampCost) -> RampCost:
    features = features_of(model, drawn.cells)
    return fit_ramps(cost.terms, features, drawn.latency_us, drawn.relative_error)
