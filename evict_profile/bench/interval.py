"""Means over seeds and their 95 % intervals, without scipy."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, mean, stdev

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over independent simulations, and Student's interval of it."""

    mean: float
    low: float
    high: float


def student_interval(values: Sequence[float]) -> Interval:
    """The interval of a mean.

    Raises:
        ValueError: fewer than two values have no spread.
    """
    if len(values) < 2:
        raise ValueError("an interval needs at least two simulations")
    centre = mean(values)
    half = student_quantile(len(values) - 1) * stdev(values) / len(values) ** 0.5
    return Interval(centre, centre - half, centre + half)


def student_quantile(freedom: int) -> float:
    """Student's two-sided 95 % quantile, by Cornish and Fisher's expansion.

    Within 0.1 % from eight degrees of freedom on; too small below four.
    """
    z = NormalDist().inv_cdf((1.0 + CONFIDENCE) / 2.0)
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    return z + first + second + third
