"""Monotone piecewise-linear cost on ramps, with coefficients that are never negative.

A ramp is clip(x - low, 0, high - low): flat, rising, flat. A sum of ramps end to end
with coefficients >= 0 is every non-decreasing piecewise-linear function with those
knots, convex or not. More work never costs less, so non-negative least squares
(Lawson & Hanson, 1974) is the right estimator, and needs no other regularisation.

The physics behind the terms: a layer's experts cost the sum over woken experts of
g(rows of that expert), where g jumps at the first row (the weights are read) and then
rises with more rows, in steps at the kernel's tiles. With rows shared out evenly that
is U * g(tokens * k / U), so "crowd" terms are U times a ramp in rows per expert.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from evict_profile.fit.points import Features
from evict_profile.stats import Floats

CROWD = "crowd"


@dataclass(frozen=True, order=True)
class Term:
    """One ramp of one feature; `crowd` multiplies a ramp in rows by the union."""

    feature: str
    low: float = 0.0
    high: float = float("inf")

    def values(self, features: Features) -> Floats:
        """The term at each cell, float64 [cells]."""
        if self.feature == CROWD:
            return features["union"] * self._ramp(features["rows"])
        return self._ramp(features[self.feature])

    def _ramp(self, x: Floats) -> Floats:
        return np.clip(x - self.low, 0.0, self.high - self.low)

    def __str__(self) -> str:
        return f"{self.feature}[{self.low:g}..{self.high:g}]"


@dataclass(frozen=True)
class RampCost:
    """Latency as a non-negative sum of terms, in microseconds."""

    terms: tuple[Term, ...]
    us_per_unit: Floats

    def latency_us(self, features: Features) -> Floats:
        """Predicted latency of each cell, float64 [cells]."""
        return design(self.terms, features) @ self.us_per_unit


def design(terms: Sequence[Term], features: Features) -> Floats:
    """The matrix of term values, float64 [cells, terms]."""
    return np.stack([term.values(features) for term in terms], axis=1)


def fit_ramps(
    terms: Sequence[Term], features: Features, latency_us: Floats, error: Floats
) -> RampCost:
    """Non-negative least squares on relative residuals over `error` [cells]."""
    scale = 1.0 / (latency_us * error)
    matrix = design(terms, features) * scale[:, None]
    # Columns differ by orders of magnitude; NNLS stops early unless they are levelled.
    size = np.linalg.norm(matrix, axis=0)
    size[size == 0.0] = 1.0
    solution, _ = nnls(matrix / size, latency_us * scale)
    return RampCost(tuple(terms), solution / size)


def split(term: Term, knot: float) -> tuple[Term, Term]:
    """The two ramps that a knot inside a term makes of it."""
    left = Term(term.feature, term.low, knot)
    return left, Term(term.feature, knot, term.high)
