"""One total over all layers, spent where it is worth most.

What a layer loses under a budget of b experts is, to first order, the router mass of
the experts ranked below b, times how much the output suffers for each unit of it. The
mass of the next expert falls with b, so each layer's gain is concave, and to give one
expert after the other to the layer that gains most is optimal (Fox, "Discrete
optimization via marginal analysis", 1966).
"""

import heapq
from collections.abc import Sequence


def allocate(
    curves: Sequence[Sequence[float]],
    worth: Sequence[float],
    total: int,
    least: int,
) -> tuple[int, ...]:
    """Experts of each layer, at least `least` each, `total` in all.

    Args:
        curves: share of the router's mass of each layer's experts, largest first,
            [layers, E]; never rising within a layer.
        worth: of a unit of mass in each layer, [layers], not below 0.
        total: experts over all layers, from layers x least to layers x E.
        least: what every layer gets.
    """
    given = [least] * len(curves)
    queue = [_offer(layer, least, curves, worth) for layer in range(len(curves))]
    heapq.heapify(queue)
    for _ in range(total - sum(given)):
        _, layer = heapq.heappop(queue)
        given[layer] += 1
        heapq.heappush(queue, _offer(layer, given[layer], curves, worth))
    return tuple(given)


def _offer(
    layer: int, given: int, curves: Sequence[Sequence[float]], worth: Sequence[float]
) -> tuple[float, int]:
    """What the layer's next expert is worth, negative; 1 where there is none."""
    full = given == len(curves[layer])
    return (1.0 if full else -worth[layer] * curves[layer][given], layer)


def worth_of_mass(
    kl: Sequence[float], curves: Sequence[Sequence[float]], budget: int
) -> list[float]:
    """Damage for each unit of lost mass, by layer, where each alone had a budget.

    Args:
        kl: of the output while that layer alone had the budget, [layers].
        curves: as `allocate` has it.
        budget: which it had, below E.
    """
    lost = [sum(curve[budget:]) for curve in curves]
    return [max(k, 0.0) / max(gone, 1e-9) for k, gone in zip(kl, lost, strict=True)]
