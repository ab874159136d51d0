"""The decision in numpy: one sort of values, one scan, and no sort of indices.

A stable argsort of 64 x 60 nodes costs ten times the vectorised sort of their values.
So values alone are sorted; the k-th largest is a threshold, above it every node is
kept, and at it the first by index. Parents stand before their children, and a child
that ties its parent is kept only after it: the same set that a stable sort keeps.

Calibration by depth or by parents changes the order, so that what nodes are worth is
sorted instead. It can also make a tie of a parent and a child that stands before it.
So of equal worth the more probable comes first, and only then the first by index.
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
    pools = rule.pools(len(path_prob))
    shown = path_prob.reshape(pools, path_prob.size // pools)
    ranked, ties = shown, None
    if calibrate is not None and place is not None:
        require_probabilities(path_prob)
        ranked, ties = calibrate(path_prob, place).reshape(shown.shape), shown
    best = ranked.copy()
    best.sort()
    best = best[:, ::-1]
    if ties is None:
        _refuse_what_is_no_probability(best)
    gains = best[:, : len(costs) - 1]
    if calibrate is not None and place is None:
        gains = calibrate(gains, None)
    start = terms.start(len(path_prob))
    claimed = running_sum(gains, start)
    k = int(_score(claimed, costs, rule, terms).argmax())
    keep = first(ranked, best, k, ties)
    return keep.reshape(path_prob.shape), k, claimed.item(k) - start


def running_sum(gains: Probabilities, start: float) -> Floats:
    """What k nodes of each pool add to a start, k = 0..., float64 [..., sizes].

    `gains` [..., pools, nodes] are descending.
    """
    steps = np.empty((*gains.shape[:-2], gains.shape[-1] + 1))
    steps[..., 0] = start
    alone = gains.shape[-2] == 1
    steps[..., 1:] = gains[..., 0, :] if alone else gains.sum(axis=-2, dtype=np.float64)
    return np.add.accumulate(steps, axis=-1, out=steps)


def require_probabilities(path_prob: Probabilities) -> None:
    """Refuse NaN and values outside [0, 1].

    Raises:
        PlanError: there is one.
    """
    if path_prob.size:
        # The index of the largest, which NaN is, costs a third of the largest.
        largest = path_prob.item(path_prob.argmax())
        _require_within(largest, path_prob.item(path_prob.argmin()))


def first(
    ranked: Probabilities, best: Probabilities, k: int, ties: Probabilities | None
) -> Bools:
    """The best k of each pool, bool [pools, nodes].

    Of equals those of most in `ties`, and then, or without it, the first by index.

    Args:
        ranked: [pools, nodes].
        best: the same in descending order, the k best or more.
        k: whole number from 0 to the nodes of a pool.
        ties: [pools, nodes].
    """
    if k == 0:
        return np.zeros(ranked.shape, dtype=np.bool_)
    # A scalar where it can be one: numpy compares with it faster than by broadcasting.
    threshold = best[0, k - 1] if len(best) == 1 else best[:, k - 1 : k]
    keep: Bools = ranked >= threshold
    if np.count_nonzero(keep) > k * len(ranked):
        tied = ranked == threshold
        above = keep & ~tied
        room = k - above.sum(axis=1, keepdims=True)
        keep = above | _first_tied(tied, room, ties)
    return keep


def _first_tied(tied: Bools, room: NDArray[Any], ties: Probabilities | None) -> Bools:
    """Of each pool's tied nodes as many as there is room for, bool [pools, nodes]."""
    if ties is None:
        return tied & (tied.cumsum(axis=1) <= room)
    order = np.argsort(np.where(tied, -ties, 1.0), axis=1, kind="stable")
    taken = np.zeros_like(tied)
    np.put_along_axis(taken, order, np.arange(tied.shape[1]) < room, axis=1)
    return taken


def _score(claimed: Floats, costs: Floats, rule: Rule, terms: Terms) -> Floats:
    if rule.objective == "rate":
        return claimed - terms.rate / terms.trust * costs
    return claimed / (costs + terms.us)


def _refuse_what_is_no_probability(best: Probabilities) -> None:
    if not best.shape[1]:
        return
    # NaN sorts last, which here is first, and compares as false.
    if len(best) == 1:
        _require_within(best.item(0, 0), best.item(0, -1))
    else:
        require_probabilities(best[:, :: max(best.shape[1] - 1, 1)])


def _require_within(largest: float, smallest: float) -> None:
    if largest <= LARGEST_PROBABILITY and smallest >= 0.0:
        return
    raise PlanError(
        "path_prob holds a value that is NaN or outside [0, 1]; give products of "
        "probabilities, and 0 where a request has fewer nodes"
    )
