"""What a fit misses where it was not fitted: between its levels, and as routers choose.

Residuals at the grid's levels cannot show what happens between them: a fit through the
powers of two does not see that an engine pads all else to them, that kernels run in
tiles, or that small unions stay in a cache. Cells that are measured and never fitted
can. Those between the levels are drawn by `sweep.grid`; those that the router chose the
experts of are priced at the union that was observed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evict_profile.cost_model import Features, ForwardCost
from evict_profile.fit.points import Points
from evict_profile.stats import ErrorSummary, Floats, summarise_errors

NOISE_MARGIN = 1.3
"""Residuals this much above noise, in squares, are still taken for noise: the mean of
some forty squares is a third off now and then."""


@dataclass(frozen=True)
class UnseenCells:
    """Cells of the MoE layers that nothing was fitted to, where they really ran."""

    points: Points
    features: Features

    def predicted_us(self, cost: ForwardCost) -> Floats:
        """The measured layers' price of each, float64 [cells]."""
        return cost.layers.latency_us(self.features)

    def error(self, cost: ForwardCost) -> ErrorSummary | None:
        """Summary of the relative errors; None without cells."""
        if not len(self.points):
            return None
        return summarise_errors(self.predicted_us(cost), self.points.latency_us)

    def residuals(self, cost: ForwardCost) -> Floats:
        """Measured over predicted, less one, float64 [cells]."""
        return self.points.latency_us / self.predicted_us(cost) - 1.0


def misfit(
    unseen: Sequence[UnseenCells], cost: ForwardCost, replicates: Sequence[ForwardCost]
) -> float:
    """Relative error (root mean square) that neither noise nor the fit's doubt explain.

    Args:
        unseen: cells that nothing was fitted to.
        cost: the fit.
        replicates: its bootstrap replicates.
    """
    residuals = np.concatenate([each.residuals(cost) for each in unseen])
    if not len(residuals):
        return 0.0
    explained = np.concatenate([_explained(each, cost, replicates) for each in unseen])
    excess = np.mean(residuals**2) - NOISE_MARGIN * np.mean(explained)
    return float(np.sqrt(max(excess, 0.0)))


def _explained(
    unseen: UnseenCells, cost: ForwardCost, replicates: Sequence[ForwardCost]
) -> Floats:
    """The square of what noise and the fit's doubt make of residuals, [cells]."""
    prices = np.array([unseen.predicted_us(each) for each in replicates])
    doubt = prices.std(axis=0) / unseen.predicted_us(cost)
    square: Floats = doubt**2 + unseen.points.relative_error**2
    return square
