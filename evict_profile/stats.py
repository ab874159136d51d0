"""Spread, intervals and comparisons; also the names of arrays that all modules use.

Latencies have a hard floor and a long upper tail, so means and normal intervals
mislead. The interval of a median needs no shape at all: the count of samples under
the true median is Binomial(n, 1/2), which gives exact order-statistic bounds.

Every interval of the project is of 95 %.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

CONFIDENCE = 0.95
TAIL = (1.0 - CONFIDENCE) / 2.0
WORTHWHILE = 1.01
"""Speed over that of a simpler choice from which the effort pays."""
Verdict = Literal["pays", "does not pay", "not settled"]
WHETHER_DRAFTING = "whether drafting pays"
MODE_WITHIN, MODE_STEPS = 0.1, 8


def median_interval(values: Sequence[float] | Floats) -> "Estimate":
    """The median and its distribution-free 95 % interval.

    With fewer than 6 samples no pair of order statistics covers the median with
    95 % (2 * 0.5**5 > 0.05), and the interval is unbounded.
    """
    # scipy takes a while to import, and the runtime needs this module without it.
    from scipy.special import bdtr

    ordered = np.sort(np.asarray(values, dtype=np.float64))
    count = len(ordered)
    if count == 0:
        raise ValueError("the median of no samples is not defined")
    cumulative = bdtr(np.arange(count + 1), count, 0.5)
    rank = int(np.searchsorted(cumulative, TAIL))
    median = float(np.median(ordered))
    if rank < 1:
        return Estimate(median, -np.inf, np.inf)
    return Estimate(median, float(ordered[rank - 1]), float(ordered[count - rank]))


def median_of_draws(values: Floats, count: int) -> tuple[float, float]:
    """Mean and standard deviation of the median of `count` draws from the values.

    Exact: order statistics weigh the ordered values by differences of a beta
    distribution (Maritz & Jarrett, 1978). An even count weighs both middle draws.
    """
    from scipy.special import betainc

    ordered = np.sort(values)
    share = np.arange(len(ordered) + 1) / len(ordered)
    middle = ((count + 1) // 2, count // 2 + 1)
    weights = np.mean(
        [np.diff(betainc(rank, count - rank + 1, share)) for rank in middle], axis=0
    )
    mean = float(ordered @ weights)
    return mean, float(np.sqrt((ordered - mean) ** 2 @ weights))


def main_mode(values: Floats) -> float:
    """The median of the values within a tenth of it.

    A machine that runs at half speed now and then has values of two kinds.
    """
    middle = float(np.median(values))
    for _ in range(MODE_STEPS):
        near = values[np.abs(values / middle - 1.0) < MODE_WITHIN]
        middle = float(np.median(near)) if len(near) else middle
    return middle


class Estimate(Struct, frozen=True):
    """A number with its 95 % interval; unbounded where too little is known."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Floats, tail: float = TAIL) -> "Estimate":
        """From a number and its resamples, float64 [1 + resamples]; the interval
        includes it.

        `tail` is the share of the resamples beyond either end.
        """
        value = float(values[0])
        low, high = np.quantile(values[1:], [tail, 1.0 - tail])
        return cls(value, min(float(low), value), max(float(high), value))

    @classmethod
    def of_ratio(cls, values: Floats, tail: float = TAIL) -> "Estimate":
        """The same of a ratio, by one factor to both sides.

        An interval that is symmetric, here in logs, errs less where resamples are few
        or lean to one side (Hall, "On symmetric bootstrap confidence intervals", 1988).
        """
        value, apart = float(values[0]), np.abs(np.log(values[1:] / values[0]))
        factor = float(np.exp(np.quantile(apart, 1.0 - 2.0 * tail)))
        return cls(value, value / factor, value * factor)

    def __str__(self) -> str:
        if not np.isfinite(self.high):
            return f"{self.value:.4f}"
        return f"{self.value:.4f} ({self.low:.4f} to {self.high:.4f})"

    @property
    def known(self) -> bool:
        """Whether it has an interval of some width."""
        return -np.inf < self.low < self.high < np.inf

    @property
    def verdict(self) -> Verdict:
        """Of a speed over that of a simpler choice; advice and replays judge by it."""
        if self.value > WORTHWHILE and self.low > 1.0:
            return "pays"
        return "does not pay" if self.high < WORTHWHILE else "not settled"


def student(freedom: float, level: float = 1.0 - TAIL) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, level))


def rank_within(groups: NDArray[Any], values: NDArray[Any]) -> Ints:
    """Rank of each value in its group, 0 the highest; ties in the order given."""
    order = np.lexsort((-values, groups))
    ordered, rank = groups[order], np.empty_like(order)
    rank[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return rank


def folds(count: int, most: int, seed: int | None = None) -> Ints:
    """The fold of each of `count` items, int64 [count]: `most` folds, or one an item.

    With `seed`, groups are drawn; without it, item i is in fold i mod folds.
    """
    order = np.arange(count)
    if seed is not None:
        order = np.random.default_rng(seed).permutation(count)
    return order % min(most, count)


class ErrorSummary(Struct, frozen=True):
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
    errors = np.abs(predicted - measured) / measured
    return ErrorSummary(
        median=float(np.median(errors)),
        p90=float(np.percentile(errors, 90)),
        max=float(errors.max()),
        cells=len(errors),
    )
