"""The loops of a decision: what each node is worth, how many are kept, and which.

In numpy, as plainly as they can be written; `_scan.c` says the same, and gives the same
numbers to the last digit, since it takes sums in the same order.

Arrays are C-contiguous, of float64 where nothing else is said.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evict_profile.runtime.decision import LARGEST_PROBABILITY
from evict_profile.stats import Bools, Floats

Ints = NDArray[Any]

TINY = 1e-300
"""A parent of probability 0 has children of 0, and 0 / TINY is that."""


def reach(
    trees: Floats, above: int, begin: int, prob: Floats, parent: Ints | None,
    curves: Floats,
) -> bool:  # fmt: skip
    """Write what a fresh level is worth behind the levels before.

    A node's worth is its parent's, times its own chance given the parent.

    Args:
        trees: [B, room], worth of nodes.
        above: where the level before begins.
        begin: where it ends, and the fresh one begins.
        prob: [B, P, K], of children given their parents, siblings by rank.
        parent: int64 [B, P], places in the level before; None for the root.
        curves: acceptance given the parent, by rank; see `ConditionalScorer.curves`.

    Returns:
        Whether all of `prob` are probabilities; where not, what is written means
        nothing.

    Raises:
        IndexError: a parent outside the level before.
    """
    batch, families, children = prob.shape
    if not ((prob >= 0.0) & (prob <= LARGEST_PROBABILITY)).all():
        return False
    worth = chance(curves, prob, np.arange(children))
    if parent is not None and parent.size:
        if parent.min() < 0 or parent.max() >= begin - above:
            raise IndexError("a parent outside the level before")
        request = np.arange(batch)[:, None]
        worth *= trees[request, above + parent][:, :, None]
    trees[:, begin : begin + families * children] = worth.reshape(batch, -1)
    return True


def chance(curves: Floats, prob: Floats, rank: Ints) -> Floats:
    """Acceptance of nodes given their parents, by rank among siblings."""
    ranks, bends = len(curves) // 2, curves.shape[1]
    part = curves[0].searchsorted(prob, side="right") - 1
    place = bends * (1 + np.minimum(rank, ranks - 1)) + part
    rise = curves.take(place + ranks * bends) * (prob - curves[0].take(part))
    found: Floats = np.minimum(curves.take(place) + rise, 1.0)
    return found


def expect(trees: Floats, begin: int, end: int, per_rank: Floats, out: Floats) -> None:
    """Write what nodes are worth, and again with what a level more would bring.

    Of each tree the best nodes of the last level, as many as there are ranks, are
    expected to have children that are worth their parent's worth times `per_rank`.

    Args:
        trees: [B, room].
        begin: where the last level begins.
        end: where it ends.
        per_rank: [ranks], how often a node's child of each rank is accepted.
        out: [2, B, end + parents * ranks]; the places of children that are not there
            are worth less than any node.
    """
    parents = np.sort(trees[:, begin:end])[:, ::-1][:, : len(per_rank)]
    children = (parents[:, :, None] * per_rank).reshape(len(trees), -1)
    out[:, :, :end] = trees[:, :end]
    out[0, :, end:] = -np.inf
    out[1, :, end:] = children


def best_size(
    best: NDArray[Any], costs: Floats, start: float, us: Floats, rate: float | None
) -> tuple[int, int, float]:
    """The best of some cases, how many nodes each pool keeps there, and their claim.

    Args:
        best: floats of 32 or 64 bits [cases, pools, nodes], in rising order.
        costs: [most + 1], of k nodes a pool.
        start: what is claimed without a node.
        us: [cases], time to add to every cost.
        rate: None maximises claimed / (costs + us), else claimed - rate * costs.

    Returns:
        Of equal values the first case, and the smallest k.
    """
    sizes = min(len(costs), best.shape[2] + 1)
    gains = best[:, :, :-sizes:-1]
    claimed = np.empty((len(best), sizes))
    claimed[:, 0] = start
    claimed[:, 1:] = np.add.accumulate(gains, axis=1, dtype=np.float64)[:, -1]
    np.add.accumulate(claimed, axis=1, out=claimed)
    if rate is None:
        value = claimed / (costs[:sizes] + us[:, None])
    else:
        value = claimed - rate * costs[:sizes]
    case, k = divmod(int(value.argmax()), sizes)
    return case, k, float(claimed[case, k]) - start


def cut(
    ranked: NDArray[Any], best: NDArray[Any], ties: NDArray[Any] | None,
    costs: Floats, start: float, us: float, rate: float | None,
    keep: Bools, widths: Ints,
) -> tuple[int, float] | None:  # fmt: skip
    """Write which nodes are kept, and the tokens of each request with its root.

    Of equal nodes those of most in `ties` are kept, and then, or without it, the first.

    Args:
        ranked: floats of 32 or 64 bits [B, N].
        best: the same as [pools, nodes], each pool in rising order.
        ties: floats [B, N].
        costs: see `best_size`, as are the next three.
        start: what is claimed without a node.
        us: time to add to every cost.
        rate: None maximises a ratio.
        keep: bool [B, N].
        widths: int64 [B].

    Returns:
        How many nodes each pool keeps, and their claim; None where `ranked` holds what
        is no probability, and what is written means nothing.
    """
    # NaN sorts last, and compares as false.
    within = best.size == 0 or best[:, 0].min() >= 0.0
    if not (within and best[:, -1:].max(initial=0.0) <= LARGEST_PROBABILITY):
        return None
    _, k, claimed = best_size(best[None], costs, start, np.array([us]), rate)
    shape = best.shape
    tied = None if ties is None else ties.reshape(shape)
    _keep_best(best, k, ranked.reshape(shape), tied, keep.reshape(shape))
    widths[...] = 1 + keep.sum(axis=1)
    return k, claimed


def _keep_best(
    best: NDArray[Any], k: int, ranked: NDArray[Any], ties: NDArray[Any] | None,
    keep: Bools,
) -> None:  # fmt: skip
    if k == 0:
        keep[...] = False
        return
    least = best[:, -k, None]
    keep[...] = ranked > least
    tied = ranked == least
    room = k - keep.sum(axis=1)
    for pool in np.flatnonzero(tied.sum(axis=1) > room):
        (nodes,) = tied[pool].nonzero()
        if ties is not None:
            nodes = nodes[np.argsort(-ties[pool, nodes], kind="stable")]
        tied[pool, nodes[room[pool] :]] = False
    keep |= tied


def follow(path_prob: NDArray[Any], parent: Ints, curves: Floats, out: Floats) -> bool:
    """Write what nodes are worth whose parents are known.

    Args:
        path_prob: floats of 32 or 64 bits [B, N].
        parent: int64 [B, N], each node's parent in its row, below 0 for the root; the
            last node stands for all beyond it.
        curves: acceptance given the parent, by rank; see `ConditionalScorer.curves`.
        out: [B, N]; a node that no path from the root reaches is worth 0.

    Returns:
        Whether the parent of every node that is no padding is in its row or -1.
    """
    batch, nodes = path_prob.shape
    # The root stands behind the nodes of its row.
    above = np.where(parent < 0, nodes, np.minimum(parent, nodes - 1))
    above += (nodes + 1) * np.arange(batch)[:, None]
    known = np.ones((batch, nodes + 1))
    known[:, :nodes] = path_prob
    share = known[:, :nodes] / np.maximum(known.take(above), TINY)
    factor = chance(curves, np.minimum(share, 1.0), _ranks(path_prob, above))
    worth = np.zeros((batch, nodes + 1))
    worth[:, nodes] = 1.0
    out[...] = 0.0
    # Each pass is right one level further, and the last changes nothing.
    for _ in range(nodes + 1):
        further = factor * worth.take(above)
        if np.array_equal(further, out):
            break
        out[...] = worth[:, :nodes] = further
    outside = (parent < -1) | (parent >= nodes)
    return not (outside & (path_prob > 0.0)).any()


def _ranks(path_prob: NDArray[Any], above: Ints) -> Ints:
    """The place of each node among its siblings, the most probable first, [B, N]."""
    family = above.ravel()
    order = np.lexsort((-path_prob.ravel(), family))
    sorted_family, place = family[order], np.arange(len(order))
    ranks = np.empty_like(place)
    ranks[order] = place - np.searchsorted(sorted_family, sorted_family)
    return ranks.reshape(above.shape)
