"""One total over all layers, spent where it is worth most.

How far the output is off while one layer alone has a budget is measured at a few
budgets; in between it falls about exponentially. To first order layers add up, and an
exponential is convex, so that to give one expert after the other to the layer that
gains most is optimal (Fox, "Discrete optimization via marginal analysis", 1966).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from evict_profile.stats import Floats

MIN_KL = 1e-9
"""Nats; rounding gives more."""

MIN_FALL = 1e-6
"""Of the logarithm with each expert: a layer where nothing was felt gets no more."""


def fit_losses(kl: Mapping[int, Sequence[float]], experts: int) -> Floats:
    """How far each layer puts the output off, by its budget, float64 [layers, E + 1].

    An exponential through what was measured, by least squares of its logarithm.

    Args:
        kl: nats a token while one layer alone had a budget, [layers], by budget; two
            budgets or more.
        experts: of a layer.
    """
    budgets = np.array(sorted(kl))
    logs = np.log(np.maximum([kl[budget] for budget in budgets], MIN_KL))
    slopes, starts = np.polyfit(budgets, logs, 1)
    slopes = np.minimum(slopes, -MIN_FALL)
    losses: Floats = np.exp(starts[:, None] + slopes[:, None] * np.arange(experts + 1))
    return losses


def allocate(losses: ArrayLike, total: int, least: int) -> tuple[int, ...]:
    """Experts of each layer, at least `least` each, `total` in all.

    Args:
        losses: what a layer loses with b experts, [layers, E + 1], falling and convex.
        total: experts over all layers, from layers x least to layers x E.
        least: what every layer gets.
    """
    # Gains fall within a layer, so that the largest of all are its first ones.
    gains = -np.diff(np.asarray(losses)[:, least:])
    layers, further = gains.shape
    best = np.argsort(-gains, axis=None, kind="stable")[: total - layers * least]
    budgets: list[int] = (
        least + np.bincount(best // further, minlength=layers)
    ).tolist()
    return tuple(budgets)
