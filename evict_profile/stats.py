"""Spread, intervals and comparisons; also the names of arrays that all modules use.

Latencies have a hard floor and a long upper tail, so means and normal intervals
mislead. The interval of a median needs no shape at all: the count of samples under
the true median is Binomial(n, 1/2), which gives exact order-statistic bounds.

Ratios of sums over prompts (tokens over time, errors over nodes) get a bootstrap
interval. What is independent is resampled: prompts and seeds, not steps or nodes.
Resamples of few prompts scatter too little, by sqrt((n - 1) / n), and as the normal
does where Student's t is due; so percentiles further out are read (Hesterberg, "What
teachers should know about the bootstrap", 2015). Every interval of the project is of
95 %; `benchmarks/known_acceptance` measures how often those of prompts hold the truth.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

CONFIDENCE = 0.95
TAIL = (1.0 - CONFIDENCE) / 2.0
RESAMPLES = 2000
WORTHWHILE = 1.01
"""Speed over that of a simpler choice from which the effort pays."""
Verdict = Literal["pays", "does not pay", "not settled"]
WHETHER_DRAFTING = "whether drafting pays"
MODE_WITHIN, MODE_STEPS = 0.1, 8
MIN_PROMPTS = 5
"""With fewer prompts, resampling is not informative, and intervals are unbounded."""
MOST_PROMPTS = 1024
"""More are resampled in as many groups, drawn at random: weights of each prompt by
itself would take gigabytes, and the spread of a sum is the same."""


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


class Bootstrap:
    """Resamples of prompts and seeds; one for both sides cancels most of the spread."""

    def __init__(self, prompts: int, seeds: int = 1) -> None:
        rng = np.random.default_rng(0)
        self.prompts = prompts
        groups = min(prompts, MOST_PROMPTS)
        self._seeds, self._prompts = _weights(rng, seeds), _weights(rng, groups)

    def sums(self, by_prompt: NDArray[Any]) -> Floats:
        """Sums over prompts and seeds, then in each resample, [columns, 1 + resamples].

        `by_prompt` is [prompts, columns] or [seeds, prompts, columns].
        """
        if by_prompt.ndim == 2:
            by_prompt = by_prompt[None]
        if self.prompts > MOST_PROMPTS:
            by_prompt = _grouped(by_prompt)
        by_seed = np.tensordot(self._prompts, by_prompt, axes=(1, 1))
        sums: Floats = np.einsum("rs,rsc->cr", self._seeds, by_seed)
        return sums

    def estimate(self, values: Floats) -> Estimate:
        """A number computed from `sums`, float64 [1 + resamples], with its interval."""
        if self.prompts < MIN_PROMPTS:
            return Estimate(float(values[0]), -np.inf, np.inf)
        return Estimate.of(values, self.tail)

    def ratio(self, values: Floats) -> Estimate:
        if self.prompts < MIN_PROMPTS:
            return Estimate(float(values[0]), -np.inf, np.inf)
        return Estimate.of_ratio(values, self.tail)

    @cached_property
    def tail(self) -> float:
        # scipy takes a while to import, and the runtime needs this module without it.
        from scipy.special import ndtr

        count = self.prompts
        return float(ndtr(-student(count - 1) * np.sqrt(count / (count - 1))))


def jackknife_half_width(left_out: Floats) -> Floats:
    """95 % half-width, [means], of means without each prompt, [prompts, means]."""
    count = len(left_out)
    variance: Floats = (count - 1) * left_out.var(axis=0)
    return student(count - 1) * np.sqrt(variance)


def student(freedom: float, level: float = 1.0 - TAIL) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, level))


def optimism(values: Floats, chosen: Ints) -> Floats:
    """The selection bias of a value that was chosen as the best, as log ratios.

    Each resample makes its own choice. The mean difference between its value there and
    on all prompts is the bias of the first choice (Efron, 1983). A log value less its
    optimism has that mean subtracted; in a resample it has the error of that resample's
    choice, so that an interval includes the noise of choosing.

    `values` are positive, float64 [candidates, 1 + resamples]; `chosen` is the
    candidate of each column, int64 [1 + resamples].
    """
    logs = np.log(values)
    gain = logs[chosen, np.arange(len(chosen))] - logs[chosen, 0]
    gained = gain - (logs[chosen[0]] - logs[chosen[0], 0])
    mean = gained[1:].mean()
    bias: Floats = np.append(mean, 2.0 * mean - gained[1:])
    return bias


def _grouped(by_prompt: NDArray[Any]) -> Floats:
    order = np.random.default_rng(0).permutation(by_prompt.shape[1])
    starts = np.arange(MOST_PROMPTS) * len(order) // MOST_PROMPTS
    sums: Floats = np.add.reduceat(by_prompt[:, order], starts, axis=1)
    return sums


def _weights(rng: "np.random.Generator", count: int) -> Floats:
    """How often each of `count` is drawn; the first row draws each once."""
    drawn = rng.multinomial(count, np.full(count, 1.0 / count), size=RESAMPLES)
    return np.vstack([np.ones(count), drawn])


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
