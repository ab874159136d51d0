"""The decision in numpy: one sort of values, one scan, and no sort of indices.

A stable argsort of 64 x 60 nodes costs ten times the vectorised sort of their values.
So values alone are sorted; the k-th largest is a threshold, above it every node is
kept, and at it the first by index. Parents stand before their children, and a child
that ties its parent is kept only after it: the same set that a stable sort keeps.

Calibration by depth or by parents changes the order, so that there indices are sorted,
by what each node is worth. It can also make a tie of a parent and a child that stands
before it. So of equal worth the more probable comes first, and only then the first by
index.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evict_profile.errors import PlanError
from evict_profile.runtime.decision import LARGEST_PROBABILITY, Rule, Terms
from evict_profile.stats import Floats

Probabilities = NDArray[Any]
Bools = NDArray[np.bool_]
Calibrate = Callable[[Probabilities, NDArray[Any] | None], Probabilities]
FirstOnes = Callable[[int], Bools]


def decide(
    path_prob: Probabilities,
    costs: Floats,
    rule: Rule,
    terms: Terms,
    calibrate: Calibrate | None,
    place: NDArray[Any] | None = None,
) -> tuple[Bools, int, float]:
    """The kept nodes, bool [B, N]; k, nodes a pool; and the sum of their worth.

    Args:
        path_prob: floats [B, N]; parents before children wherever the two tie.
        costs: step cost at each k, from `reachable_costs`.
        rule: what is maximised.
        terms: the numbers in it.
        calibrate: path probability to acceptance, non-decreasing; None for itself.
        place: [B, N], what calibration reads beside it: depths, or parents for
            conditional acceptance; None where one map serves all nodes.

    Raises:
        PlanError: a probability is NaN or outside [0, 1], or a parent in no row.
    """
    batch, nodes = path_prob.shape
    pools = rule.pools(batch)
    pooled = path_prob.reshape(pools, batch * nodes // pools)
    if calibrate is None or place is None:
        gains, first = _by_value(pooled, len(costs) - 1, calibrate)
    else:
        require_probabilities(path_prob)
        worth = calibrate(path_prob, place).reshape(pooled.shape)
        gains, first = _by_worth(pooled, len(costs) - 1, worth)
    # All is divided by the trust: that leaves the order, and saves a pass.
    start = (batch + terms.tokens) / terms.trust
    claimed = _running_sum(gains, start)
    k = int(_score(claimed, costs, rule, terms).argmax())
    return first(k).reshape(batch, nodes), k, claimed.item(k) - start


def best_score(worth: Floats, costs: Floats, rule: Rule, terms: Terms) -> float:
    """What the best set of nodes reaches of what is maximised, divided by the trust.

    Args:
        worth: acceptance of each node, [B, N]; no child's is above its parent's.
        costs: step cost at each k, of at least k = 0.
        rule: what is maximised.
        terms: the numbers in it.
    """
    batch, nodes = worth.shape
    pools = rule.pools(batch)
    best = np.sort(worth.reshape(pools, batch * nodes // pools), axis=1)[:, ::-1]
    start = (batch + terms.tokens) / terms.trust
    claimed = _running_sum(best[:, : len(costs) - 1], start)
    return float(_score(claimed, costs[: len(claimed)], rule, terms).max())


def require_probabilities(path_prob: Probabilities) -> None:
    """Refuse NaN and values outside [0, 1].

    Raises:
        PlanError: there is one.
    """
    if path_prob.size:
        _require_within(path_prob.max(), path_prob.min())


def _by_value(
    pooled: Probabilities, most: int, calibrate: Calibrate | None
) -> tuple[Probabilities, FirstOnes]:
    """The worth of the best nodes, [pools, most] or fewer; and caveats k of them."""
    best = np.sort(pooled, axis=1)[:, ::-1]
    _refuse_what_is_no_probability(best)
    gains = best[:, :most]
    if calibrate is not None:
        gains = calibrate(gains, None)
    return gains, lambda k: _best_nodes(pooled, best, k)


def _by_worth(
    pooled: Probabilities, most: int, worth: Probabilities
) -> tuple[Probabilities, FirstOnes]:
    """As `_by_value`, in the order of what nodes are worth."""
    order = np.lexsort((-pooled, -worth), axis=1)
    pool = np.arange(len(pooled))[:, None]
    gains = worth[pool, order[:, :most]]

    def first(k: int) -> Bools:
        keep = np.zeros(pooled.shape, dtype=np.bool_)
        keep[pool, order[:, :k]] = True
        return keep

    return gains, first


def _running_sum(gains: Probabilities, start: float) -> Floats:
    steps = np.empty(gains.shape[1] + 1)
    steps[0] = start
    steps[1:] = gains[0] if len(gains) == 1 else gains.sum(axis=0, dtype=np.float64)
    return np.add.accumulate(steps, out=steps)


def _score(claimed: Floats, costs: Floats, rule: Rule, terms: Terms) -> Floats:
    if rule.objective == "rate":
        return claimed - terms.rate / terms.trust * costs
    return claimed / (costs + terms.us)


def _best_nodes(pooled: Probabilities, best: Probabilities, k: int) -> Bools:
    """The first k of each pool in a stable descending order, bool [pools, nodes]."""
    if k == 0:
        return np.zeros(pooled.shape, dtype=np.bool_)
    # A scalar where it can be one: numpy compares with it faster than by broadcasting.
    threshold = best[0, k - 1] if len(best) == 1 else best[:, k - 1 : k]
    keep: Bools = pooled >= threshold
    if np.count_nonzero(keep) > k * len(pooled):
        ties = pooled == threshold
        above = keep & ~ties
        room = k - above.sum(axis=1, keepdims=True)
        keep = above | (ties & (ties.cumsum(axis=1) <= room))
    return keep


def _refuse_what_is_no_probability(best: Probabilities) -> None:
    if not best.shape[1]:
        return
    # NaN sorts last, which here is first, and compares as false. Bare ufuncs and
    # single items: the methods around them cost more than the work.
    if len(best) == 1:
        largest, smallest = best.item(0, 0), best.item(0, -1)
    else:
        largest = np.maximum.reduce(best[:, 0])
        smallest = np.minimum.reduce(best[:, -1])
    _require_within(largest, smallest)


def _require_within(largest: float, smallest: float) -> None:
    if largest <= LARGEST_PROBABILITY and smallest >= 0.0:
        return
    raise PlanError(
        "path_prob holds a value that is NaN or outside [0, 1]; give products of "
        "probabilities, and 0 where a request has fewer nodes"
    )
