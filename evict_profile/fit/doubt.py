"""What the fit is unsure of: the guide of an adaptive sweep.

A refit on redrawn cells moves most where the cells around decide least. So the
standard deviation of bootstrap predictions over the prediction, cell by cell, says
where a measurement would teach most (query by committee, Seung et al., 1992).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from evict_profile.cells import Cell
from evict_profile.config import ModelSpec
from evict_profile.fit.cost import CostModel, fit_cost, parts_of, refit
from evict_profile.fit.heldout import held_out
from evict_profile.fit.points import Points, points_of
from evict_profile.fit.rivals import fit_ours
from evict_profile.stats import Floats
from evict_profile.sweep.plan import Doubt, History, Surrogate

REPLICATES = 40
FIT_SEED = 0


def fit_surrogate(model: ModelSpec, measured_layers: int) -> Surrogate:
    """A surrogate that fits our own cost model to the samples so far."""

    def doubt(history: History, cells: Sequence[Cell]) -> Doubt:
        points = points_of(history)
        cost = fit_cost(points, model, measured_layers)
        others = committee(cost, points)
        forced = points.where("layers", "balanced")
        error = held_out(fit_ours, model, forced, FIT_SEED).error
        spread = _relative_std([_priced(other, cells) for other in others])
        return Doubt(error, dict(zip(cells, spread.tolist(), strict=True)))

    return doubt


def committee(cost: CostModel, points: Points) -> list[CostModel]:
    """Refits with the same knots on redrawn cells and redrawn medians."""
    rng = np.random.default_rng(FIT_SEED)
    layers, ends = parts_of(points)
    return [
        replace(
            cost,
            layers=refit(cost.model, layers.redraw(rng), cost.layers),
            ends=refit(cost.model, ends.redraw(rng), cost.ends),
        )
        for _ in range(REPLICATES)
    ]


def _priced(cost: CostModel, cells: Sequence[Cell]) -> Floats:
    """Latency of each cell's own part; naturally routed cells teach a fit nothing."""
    layers_us, ends_us = cost.layers_us(cells), cost.ends_us(cells)
    is_ends = np.array([cell.part == "ends" for cell in cells])
    return np.where(is_ends, ends_us, layers_us)


def _relative_std(predictions: Sequence[Floats]) -> Floats:
    stacked = np.stack(predictions)
    spread: Floats = stacked.std(axis=0) / stacked.mean(axis=0)
    return spread
