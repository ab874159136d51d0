"""The nearest table of numbers that is monotone along each of its axes.

Weighted least squares under order constraints in several directions is a projection
onto an intersection of convex cones. Each cone alone, lines that never fall, is
isotonic regression, which pooling adjacent violators solves exactly; Dykstra's
algorithm (Boyle and Dykstra 1986) turns the projections into one onto them all. Cells
that hold little are pulled to their neighbours by their small weight.
"""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import isotonic_regression

from evict_profile.stats import Floats

MOST_ROUNDS = 5000
TOLERANCE = 1e-6


def monotone_fit(values: Floats, weights: Floats, rising: Sequence[bool]) -> Floats:
    """The projection of `values`, in the norm that `weights` give.

    Args:
        values: any number of axes.
        weights: positive, shaped as the values.
        rising: for each axis, whether the fit must not fall along it; else it must
            not rise.
    """
    fit = values.astype(np.float64)
    steps = [np.zeros_like(fit) for _ in rising]
    for _ in range(MOST_ROUNDS):
        moved = 0.0
        for axis, up in enumerate(rising):
            target = fit + steps[axis]
            fit = _along(target, weights, axis, up)
            moved = max(moved, float(np.abs(target - fit - steps[axis]).max()))
            steps[axis] = target - fit
        if moved < TOLERANCE:
            break
    return _exactly(fit, rising)


def _along(values: Floats, weights: Floats, axis: int, up: bool) -> Floats:
    fit = values.copy()
    lines, weight = np.moveaxis(fit, axis, -1), np.moveaxis(weights, axis, -1)
    steps = np.diff(lines, axis=-1)
    # A line that is monotone already is its own projection.
    wrong = np.any(steps < 0.0 if up else steps > 0.0, axis=-1)
    for place in zip(*np.nonzero(wrong), strict=True):
        found = isotonic_regression(lines[place], weights=weight[place], increasing=up)
        lines[place] = found.x
    return fit


def _exactly(fit: Floats, rising: Sequence[bool]) -> Floats:
    """Take away what the last rounds left: less than the tolerance."""
    for axis, up in enumerate(rising):
        edge = np.maximum if up else np.minimum
        fit = edge.accumulate(fit, axis=axis)
    return fit
