"""The decision on the host: one sort of values, one scan, and no sort of indices.

A stable argsort of 64 x 60 nodes costs ten times the vectorised sort of their values.
So values alone are sorted; the k-th largest is a threshold, above it every node is
kept, and at it the first by index. Parents stand before their children, and a child
that ties its parent is kept only after it: the same set that a stable sort keeps.

What nodes are worth can tie a parent and a child that stands before it. So of equal
worth the more probable comes first, and only then the first by index.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evict_profile.errors import PlanError
from evict_profile.runtime import scan
from evict_profile.runtime.decision import LARGEST_PROBABILITY, Rule, Terms
from evict_profile.stats import Floats

Probabilities = NDArray[Any]
Bools = NDArray[np.bool_]


def decide(
    path_prob: Probabilities,
    costs: Floats,
    rule: Rule,
    terms: Terms,
    worth: Floats | None = None,
) -> tuple[Bools, int, float]:
    """The kept nodes, bool [B, N]; k, nodes a pool; and the sum of their worth.

    Args:
        path_prob: floats [B, N]; parents before children wherever the two tie.
        costs: step cost at each k, from `reachable_costs`.
        rule: what is maximised.
        terms: the numbers in it.
        worth: float64 [B, N], acceptance of each node; None believes the drafter.

    Raises:
        PlanError: a probability that was not calibrated is NaN or outside [0, 1].
    """
    shown = np.ascontiguousarray(path_prob).reshape(rule.pools(len(path_prob)), -1)
    ranked, ties = shown, None
    if worth is not None:
        ranked, ties = worth.reshape(shown.shape), shown
    best = ranked.copy()
    best.sort()
    if worth is None:
        _refuse_what_is_no_probability(best)
    _, k, claimed = scan.loops.best_size(
        best[None],
        costs,
        terms.start(len(path_prob)),
        np.array([terms.us]),
        terms.rate / terms.trust if rule.objective == "rate" else None,
    )
    keep = np.empty(shown.shape, np.bool_)
    scan.loops.first(ranked, best, k, ties, keep)
    return keep.reshape(path_prob.shape), k, claimed


def require_probabilities(path_prob: Probabilities) -> None:
    """Refuse NaN and values outside [0, 1].

    Raises:
        PlanError: there is one.
    """
    if path_prob.size:
        # The index of the largest, which NaN is, costs a third of the largest.
        largest = path_prob.item(path_prob.argmax())
        _require_within(largest, path_prob.item(path_prob.argmin()))


def _refuse_what_is_no_probability(best: Probabilities) -> None:
    if not best.shape[1]:
        return
    # NaN sorts last, and compares as false.
    if len(best) == 1:
        _require_within(best.item(0, -1), best.item(0, 0))
    else:
        require_probabilities(best[:, :: max(best.shape[1] - 1, 1)])


def _require_within(largest: float, smallest: float) -> None:
    if not (largest <= LARGEST_PROBABILITY and smallest >= 0.0):
        raise no_probability("path_prob")


def no_probability(name: str) -> PlanError:
    """The refusal of numbers that are no probabilities."""
    return PlanError(
        f"{name} holds a value that is NaN or outside [0, 1]; give probabilities, and "
        "0 where a request has fewer nodes"
    )
