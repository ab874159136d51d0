"""One total over all layers, spent where it is worth most.

How far the output is off while one layer alone has a budget is measured at a few
budgets; in between it falls about exponentially. To first order layers add up, and an
exponential is convex, so that to give one expert after the other to the layer that
gains most is optimal (Fox, "Discrete optimization via marginal analysis", 1966).
"""

import heapq
from collections.abc import Mapping, Sequence

import numpy as np

MIN_KL = 1e-9
"""Nats; rounding gives more."""

MIN_FALL = 1e-6
"""Of the logarithm with each expert: a layer where nothing was felt gets no more."""


def fit_losses(
    kl: Mapping[int, Sequence[float]], experts: int
) -> tuple[tuple[float, ...], ...]:
    """How far each layer puts the output off, by its budget, [layers, E + 1].

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
    losses = np.exp(starts[:, None] + slopes[:, None] * np.arange(experts + 1))
    return tuple(map(tuple, losses.tolist()))


def allocate(
    losses: Sequence[Sequence[float]], total: int, least: int
) -> tuple[int, ...]:
    """Experts of each layer, at least `least` each, `total` in all.

    Args:
        losses: what a layer loses with b experts, [layers, E + 1], falling and convex.
        total: experts over all layers, from layers x least to layers x E.
        least: what every layer gets.
    """
    budgets = [least] * len(losses)
    queue = [_next_gain(layer, least, losses) for layer in range(len(losses))]
    heapq.heapify(queue)
    for _ in range(total - sum(budgets)):
        _, layer = heapq.heappop(queue)
        budgets[layer] += 1
        heapq.heappush(queue, _next_gain(layer, budgets[layer], losses))
    return tuple(budgets)


def _next_gain(
    layer: int, budget: int, losses: Sequence[Sequence[float]]
) -> tuple[float, int]:
    """What the layer gains by its next expert, negative; 1 where there is none."""
    loss = losses[layer]
    full = budget + 1 == len(loss)
    return (1.0 if full else loss[budget + 1] - loss[budget], layer)
