"""Intervals of what is summed over prompts: a bootstrap, a jackknife, and the optimism
of a choice.

Ratios of sums over prompts (tokens over time, errors over nodes) get a bootstrap
interval. What is independent is resampled: prompts and seeds, not steps or nodes.
Resamples of few prompts scatter too little, by sqrt((n - 1) / n), and as the normal
does where Student's t is due; so percentiles further out are read (Hesterberg, "What
teachers should know about the bootstrap", 2015).
`benchmarks/known_acceptance` measures how often these intervals hold the truth.
"""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from evict_profile.stats import Estimate, Floats, Ints, student

RESAMPLES = 2000
MIN_PROMPTS = 5
"""With fewer prompts, resampling is not informative, and intervals are unbounded."""
MOST_PROMPTS = 1024
"""More are resampled in as many groups, drawn at random: weights of each prompt by
itself would take gigabytes, and the spread of a sum is the same."""


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
        count = self.prompts
        return float(ndtr(-student(count - 1) * np.sqrt(count / (count - 1))))


def jackknife_half_width(left_out: Floats) -> Floats:
    """95 % half-width, [means], of means without each prompt, [prompts, means]."""
    count = len(left_out)
    variance: Floats = (count - 1) * left_out.var(axis=0)
    return student(count - 1) * np.sqrt(variance)


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
