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
from evict_profile.stats import Bools, Floats, Ints

Probabilities = NDArray[Any]


def decide(
    path_prob: Probabilities,
    costs: Floats,
    rule: Rule,
    terms: Terms,
    worth: Floats | None = None,
) -> tuple[Bools, Ints, int, float]:
    """The kept nodes, bool [B, N], and the tokens of each request, int64 [B].

    With them k, the nodes of a pool, and the sum of their worth.

    Args:
        path_prob: floats [B, N]; parents before children wherever the two tie.
        costs: step cost at each k, from `reachable_costs`.
        rule: what is maximised.
        terms: the numbers in it.
        worth: float64 [B, N], acceptance of each node; None believes the drafter.

    Raises:
        PlanError: a probability that was not calibrated is NaN or outside [0, 1].
    """
    batch = len(path_prob)
    pools = rule.pools(batch)
    ranked, ties = np.ascontiguousarray(path_prob), None
    if worth is not None:
        ranked, ties = worth, ranked
    best = ranked.copy()
    if pools != batch:
        best = best.reshape(pools, -1)
    best.sort()
    keep = np.empty(path_prob.shape, bool)
    widths = np.empty(batch, int)
    rate = terms.rate / terms.trust if rule.objective == "rate" else None
    start = terms.start(batch)
    found = scan.loops.cut(
        ranked, best, ties, costs, start, terms.us, rate, keep, widths
    )
    if found is None:
        raise no_probability("path_prob")
    k, claimed = found
    return keep, widths, k, claimed


def require_probabilities(path_prob: Probabilities) -> None:
    """Refuse NaN and values outside [0, 1].

    Raises:
        PlanError: there is one.
    """
    if path_prob.size:
        # The index of the largest, which NaN is, costs a third of the largest.
        largest = path_prob.item(path_prob.argmax())
        smallest = path_prob.item(path_prob.argmin())
        if not (largest <= LARGEST_PROBABILITY and smallest >= 0.0):
            raise no_probability("path_prob")


def no_probability(name: str) -> PlanError:
    """The refusal of numbers that are no probabilities."""
    return PlanError(
        f"{name} holds a value that is NaN or outside [0, 1]; give probabilities, and "
        "0 where a request has fewer nodes"
    )
