"""Spread, intervals and comparisons for latencies: medians, never single shots.

Latencies have a hard floor and a long upper tail, so means and normal intervals
mislead. The interval of a median needs no shape at all: the count of samples under
the true median is Binomial(n, 1/2), which gives exact order-statistic bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

Floats = NDArray[np.float64]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class MedianInterval:
    """A median with its interval; `relative_half_width` is infinite when n < 6."""

    median: float
    low: float
    high: float
    count: int

    @property
    def relative_half_width(self) -> float:
        """Half the interval over the median."""
        return (self.high - self.low) / 2.0 / self.median


def median_interval(values: Sequence[float] | Floats) -> MedianInterval:
    """The median and its distribution-free 95 % interval.

    With fewer than 6 samples no pair of order statistics covers the median with
    95 % (2 * 0.5**5 > 0.05), and the interval is unbounded.

    Raises:
        ValueError: no values.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    count = len(ordered)
    if count == 0:
        raise ValueError("the median of no samples is not defined")
    cumulative = bdtr(np.arange(count + 1), count, 0.5)
    rank = int(np.searchsorted(cumulative, (1.0 - CONFIDENCE) / 2.0))
    median = float(np.median(ordered))
    if rank < 1:
        return MedianInterval(median, -np.inf, np.inf, count)
    return MedianInterval(
        median, float(ordered[rank - 1]), float(ordered[count - rank]), count
    )


def relative_spread(values: Sequence[float] | Floats) -> float:
    """Interquartile range over median: the spread that outliers cannot move."""
    low, mid, high = np.percentile(np.asarray(values, dtype=np.float64), [25, 50, 75])
    return float((high - low) / mid)


@dataclass(frozen=True)
class ErrorSummary:
    """Relative errors |predicted - measured| / measured over cells."""

    median: float
    p90: float
    max: float
    cells: int

    def __str__(self) -> str:
        return (
            f"median {self.median:.1%}, p90 {self.p90:.1%}, max {self.max:.1%} "
            f"over {self.cells} cells"
        )


def summarise_errors(predicted: Floats, measured: Floats) -> ErrorSummary:
    """Summary of the relative errors of predictions, each [cells]."""
    errors = np.abs(predicted - measured) / measured
    return ErrorSummary(
        median=float(np.median(errors)),
        p90=float(np.percentile(errors, 90)),
        max=float(errors.max()),
        cells=len(errors),
    )


Verdict = Literal["same", "drifted", "unclear"]


def compare(before: MedianInterval, after: MedianInterval, floor: float) -> Verdict:
    """Whether two measurements of one cell agree, given the A/A noise floor.

    "drifted" when the medians differ by more than `floor` (relative) and the
    intervals are apart; "same" when they differ by no more than it; else "unclear":
    they differ, but more samples are needed to say so.
    """
    change = abs(after.median / before.median - 1.0)
    if change <= floor:
        return "same"
    apart = after.low > before.high or after.high < before.low
    return "drifted" if apart else "unclear"
