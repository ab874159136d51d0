"""Fitting a sum of ramps: non-negative least squares on relative residuals.

More work never costs less, so non-negative least squares (Lawson & Hanson, 1974) is
the right estimator of a sum of ramps, and needs no other regularisation.
"""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

from evict_profile.pricing import Features, RampCost, Term, design
from evict_profile.stats import Floats


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
