"""What a fit misses where it was not fitted: between its levels, and as routers choose.

Residuals at the grid's levels cannot show what happens between them: a fit through the
powers of two does not see that an engine pads all else to them, that kernels run in
tiles, or that small unions stay in a cache. Cells that are measured and never fitted
can. Those between the levels are drawn by `sweep.grid`; those that the router chose the
experts of are priced at the union that was observed.

A fit may also be right in most places and wrong in one: where experts run in waves, or
the cache and the weights contend. So the misses of the cells near a place count there,
those of the fit itself among them, each as it would be without its own cell.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evict_profile.cost_model import Features, ForwardCost
from evict_profile.fit.hinge import leverage
from evict_profile.fit.points import Points
from evict_profile.stats import ErrorSummary, Floats, summarise_errors

NEAR_OCTAVES = 0.5
"""How near cells are that tell of a place: standard deviation of their weights."""

COORDINATES = ("tokens", "union", "batch", "cache")


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

    def misses(self, cost: ForwardCost, replicates: Sequence[ForwardCost]) -> "Misses":
        """By how much a fit misses them; its bootstrap replicates tell its doubt."""
        price, noise = self.predicted_us(cost), self.points.relative_error
        doubt = np.std([self.predicted_us(r) for r in replicates], axis=0) / price
        off = self.points.latency_us / price - 1.0
        return Misses(_places(self.features), off**2, doubt**2 + noise**2)


@dataclass(frozen=True)
class Misses:
    """Squares of relative errors at cells, and what noise and doubt make of them.

    Attributes:
        places: logs to the base 2 of `COORDINATES`, float64 [cells, coordinates].
        square, explained: float64 [cells].
    """

    places: Floats
    square: Floats
    explained: Floats

    def and_those(self, other: "Misses") -> "Misses":
        """Of these cells, then of the others."""
        return Misses(
            np.concatenate((self.places, other.places)),
            np.append(self.square, other.square),
            np.append(self.explained, other.explained),
        )

    def beyond_noise(self) -> float:
        """The mean square that is not explained, with its sign; 0 without cells."""
        return float(np.mean(self.square - self.explained)) if len(self.square) else 0.0

    def shown(self) -> float:
        """The same, less one standard error of it."""
        count = len(self.square)
        if not count:
            return 0.0
        return float(self._shown(np.full((1, count), 1.0 / count))[0])

    def shown_near(self, features: Features) -> Floats:
        """The same of the cells near each place, float64 [places].

        Cells of one union count as one: all of them draw the fit through that level,
        and say the same of what lies between levels.
        """
        apart = _places(features)[:, None] - self.places
        far = (apart**2).sum(axis=2) / (2.0 * NEAR_OCTAVES**2)
        union = self.places[:, COORDINATES.index("union")]
        _, level, count = np.unique(union, return_inverse=True, return_counts=True)
        weights = np.exp(far.min(axis=1, keepdims=True) - far) / count[level]
        return self._shown(weights / weights.sum(axis=1, keepdims=True))

    def _shown(self, weights: Floats) -> Floats:
        """Weighted means less their standard error, by weights [means, cells].

        The square of what is normal varies by twice the square of its mean.
        """
        error = np.sqrt(2.0 * (weights**2 @ self.explained**2))
        shown: Floats = weights @ (self.square - self.explained) - error
        return shown


def own_misses(cost: ForwardCost, points: Points, features: Features) -> Misses:
    """Those of the cells that the layers were fitted to, each without itself."""
    price, noise = cost.layers.latency_us(features), points.relative_error
    free = 1.0 - leverage(cost.layers, features, noise)
    off = (points.latency_us / price - 1.0) / free
    return Misses(_places(features), off**2, noise**2 / free)


def _places(features: Features) -> Floats:
    return np.log2(np.stack([features[name] for name in COORDINATES], axis=1))
