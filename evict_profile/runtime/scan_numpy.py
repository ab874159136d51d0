"""The loops of a decision in numpy: scores of nodes, how many are kept, and which.

`_scan.c` has the same functions and sums in the same order, so equal numbers. Arrays
are C-contiguous float64 by default; only `_scan.c` reads the shapes that follow them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evict_profile.stats import Bools, Floats, rank_within

Ints = NDArray[Any]

LARGEST_PROBABILITY = 1.0 + 1e-5
"""A product of float32 softmaxes may exceed 1 by rounding."""

TINY = 1e-300
"""Divides where a parent has probability 0."""


def score_level(
    trees: Floats, above: int, begin: int, prob: Floats, parent: Ints | None,
    curves: Floats, *_shapes: int,
) -> str | None:  # fmt: skip
    """Write a level's scores, the parent's times the chance given it, into `trees`.

    `trees` [B, room] gets them from `begin` on; the level before starts at `above`.
    `parent` int64 [B, P] are places in that level, None for the root; `prob` [B, P, K]
    are of siblings by rank. Returns the name of an argument that is invalid.
    """
    batch, families, children = prob.shape
    if not ((prob >= 0.0) & (prob <= LARGEST_PROBABILITY)).all():
        return "prob"
    score = chance(curves, prob, np.arange(children))
    if parent is not None and parent.size:
        if parent.min() < 0 or parent.max() >= begin - above:
            return "parent"
        request = np.arange(batch)[:, None]
        score *= trees[request, above + parent][:, :, None]
    trees[:, begin : begin + families * children] = score.reshape(batch, -1)
    return None


def chance(curves: Floats, prob: Floats, rank: Ints) -> Floats:
    """Acceptance of nodes given their parents, by rank among siblings."""
    ranks, bends = len(curves) // 2, curves.shape[1]
    part = curves[0].searchsorted(prob, side="right") - 1
    place = bends * (1 + np.minimum(rank, ranks - 1)) + part
    rise = curves.take(place + ranks * bends) * (prob - curves[0].take(part))
    found: Floats = np.minimum(curves.take(place) + rise, 1.0)
    return found


def level_pays(
    trees: Floats, begin: int, end: int, per_rank: Floats, costs: Floats, base: float,
    us: float, further_us: float, limit: int, pools: int, *_room_and_shape: Any,
) -> bool:  # fmt: skip
    """Whether one more level raises the highest tokens / (costs + us); a tie does not.

    The best nodes of the last level (`begin` to `end`), as many as there are ranks, are
    expected to have children of their score times `per_rank`. `costs` [sizes] has the
    cost of k nodes a pool; `base` is the tokens without a node; of a request at most
    `limit` nodes are kept. None, from `_scan.c`, leaves the answer to this function.
    """
    parents = np.sort(trees[:, begin:end])[:, ::-1][:, : len(per_rank)]
    children = (parents[:, :, None] * per_rank).reshape(len(trees), -1)
    without, values = trees[:, :end], []
    for scores, own_us in ((without, us), (np.hstack((without, children)), further_us)):
        best = np.sort(scores)[:, max(scores.shape[1] - limit, 0) :].reshape(pools, -1)
        best.sort()
        values.append(_find_size(best, costs, base, own_us, np.nan)[2])
    return values[1] > values[0]


def select_nodes(
    scores: Floats, best: Floats, ties: Floats | None, costs: Floats, base: float,
    us: float, rate: float, keep: Bools, widths: Ints, _batch: int, pools: int,
) -> tuple[int, float] | None:  # fmt: skip
    """Write which nodes are kept, bool [B, N], and the tokens of each request.

    `best` [pools, nodes] ascends; a single pool's is room to sort in. Of equal nodes
    those of the highest `ties` are kept, then the first. With a rate, tokens - rate *
    costs is maximised. Returns the nodes a pool and the sum of their scores; None where
    a score is no probability.
    """
    if not ((scores >= 0.0) & (scores <= LARGEST_PROBABILITY)).all():
        return None
    if pools == 1:
        best = np.sort(scores.reshape(1, -1))
    k, expected, _ = _find_size(best, costs, base, us, rate)
    tied = None if ties is None else ties.reshape(best.shape)
    _keep_best(best, k, scores.reshape(best.shape), tied, keep.reshape(best.shape))
    widths[...] = 1 + keep.sum(axis=1)
    return k, expected


def _find_size(
    best: Floats, costs: Floats, base: float, us: float, rate: float
) -> tuple[int, float, float]:
    """How many nodes each pool keeps, the sum of their scores, and the value."""
    sizes = min(len(costs), best.shape[1] + 1)
    tokens = np.empty(sizes)
    tokens[0] = base
    tokens[1:] = np.add.accumulate(best[:, :-sizes:-1])[-1]
    np.add.accumulate(tokens, out=tokens)
    if np.isnan(rate):
        value = tokens / (costs[:sizes] + us)
    else:
        value = tokens - rate * costs[:sizes]
    k = int(value.argmax())
    return k, float(tokens[k]) - base, float(value[k])


def _keep_best(
    best: Floats, k: int, scores: Floats, ties: Floats | None, keep: Bools
) -> None:
    if k == 0:
        keep[...] = False
        return
    least = best[:, -k, None]
    keep[...] = scores > least
    tied = scores == least
    room = k - keep.sum(axis=1)
    for pool in np.flatnonzero(tied.sum(axis=1) > room):
        (nodes,) = tied[pool].nonzero()
        if ties is not None:
            nodes = nodes[np.argsort(-ties[pool, nodes], kind="stable")]
        tied[pool, nodes[room[pool] :]] = False
    keep |= tied


def score_by_parent(
    path_prob: Floats, parent: Ints, curves: Floats, out: Floats, *_shapes: int
) -> bool:
    """Write scores of nodes by their parents; 0 for padding and below a less likely
    parent.

    Returns whether all parents are in their row. `_scan.c` returns False too, and
    leaves the trees to this function, where a parent or likelier sibling stands behind.
    """
    batch, nodes = path_prob.shape
    outside = (parent < -1) | (parent >= nodes)
    # The root stands behind the nodes of its row.
    above = np.where((parent < 0) | outside, nodes, parent)
    above += (nodes + 1) * np.arange(batch)[:, None]
    known = np.ones((batch, nodes + 1))
    known[:, :nodes] = path_prob
    share = np.minimum(path_prob / np.maximum(known.take(above), TINY), 1.0)
    order = np.argsort(-path_prob, axis=1, kind="stable")
    place = np.full((batch, nodes + 1), -1)
    np.put_along_axis(place, order, np.arange(nodes)[None], axis=1)
    ranks = rank_within(above.ravel(), path_prob.ravel()).reshape(above.shape)
    factor = chance(curves, share, ranks)
    factor[(place.take(above) >= place[:, :nodes]) | (path_prob == 0.0)] = 0.0
    known[:, :nodes] = out[...] = 0.0
    for _ in range(nodes):  # Each pass is right one level further.
        further = factor * known.take(above)
        if np.array_equal(further, out):
            break
        known[:, :nodes] = out[...] = further
    return not (outside & (path_prob > 0.0)).any()


def rises(path_prob: Floats, parent: Ints, batch: int, nodes: int) -> bool:
    """Whether a node is more probable than its parent, or does not stand behind it."""
    row = nodes * np.arange(batch)[:, None]
    above = path_prob.take(parent + row, mode="clip")
    wrong = (parent < 0) | (parent >= np.arange(nodes)) | (path_prob > above)
    return bool((wrong & (parent != -1) & (path_prob > 0.0)).any())
