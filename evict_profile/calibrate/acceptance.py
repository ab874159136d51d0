"""Acceptance of draft nodes, learnt from trees that were verified whole.

Every recorded draft node is one row (`nodes_of`): what it promised, where it stood,
whether it was accepted. A trace of truncated steps has no such rows: what a policy cut
is unknown, and its rows are those that it thought well of.

Candidates turn a node's path probability into its chance of acceptance. A curve is
non-decreasing in the path probability, so that the best k nodes stay the best k.
Where a runtime knows the parents of nodes, it can also multiply conditional
acceptances level by level: that ranks nodes better.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from evict_profile.stats import Bools, Floats, Ints, rank_within
from evict_profile.traces import Reply, Step

MOST_KNOTS = 32
BINS = MOST_KNOTS - 2
"""The scores 0 and 1 are knots as well."""
RANKS = 4
"""Ranks fitted apart; the last serves all higher ones, which are rarely right."""
DIGITS = 7


@dataclass(frozen=True, eq=False)
class Nodes:
    """Rows of many trees, roots excluded; arrays [nodes].

    Attributes:
        path_prob: product of the drafter's probabilities from the root.
        depth: 1 for children of the root.
        rank: place among its siblings, 0 the best.
        accepted: the target accepted the whole path.
        prompt: number of its prompt, the same in each reply to that prompt.
        tree: number of its tree.
        place: rank among all nodes of its tree, 0 the best.
        own_prob: the drafter's probability given the parent.
        parent: row of its parent; -1 where that is the root, or left out.
        parent_accepted: the target accepted the path to its parent.
    """

    path_prob: Floats
    depth: Ints
    rank: Ints
    accepted: Bools
    prompt: Ints
    tree: Ints
    place: Ints
    own_prob: Floats
    parent: Ints
    parent_accepted: Bools

    def __len__(self) -> int:
        return len(self.path_prob)

    def take(self, chosen: Bools) -> "Nodes":
        """The rows that a mask chooses."""
        taken = Nodes(*(getattr(self, each.name)[chosen] for each in fields(self)))
        row = np.append(np.where(chosen, np.cumsum(chosen) - 1, -1), -1)
        return replace(taken, parent=row[taken.parent])


Calibrator = Callable[[Nodes], Floats]
"""Chance of acceptance of each node, float64 [nodes]."""


@dataclass(frozen=True)
class Curves:
    """Acceptance over a probability, linear between knots.

    Attributes:
        scores: [K], increasing from 0 to 1.
        acceptances: [rows, K]; the last row serves all after it. Path probabilities
            have one row, and probabilities given the parent one a rank.
    """

    scores: Floats
    acceptances: Floats

    def __call__(self, nodes: Nodes) -> Floats:
        """Chance of acceptance of each node, float64 [nodes]."""
        return self.at(nodes.path_prob, np.zeros_like(nodes.rank))

    @property
    def knots(self) -> tuple[tuple[float, ...], tuple[tuple[float, ...], ...]]:
        """Scores and acceptances, as a table holds them."""
        rows = (tuple(row) for row in self.acceptances.tolist())
        return tuple(self.scores.tolist()), tuple(rows)

    def at(self, prob: Floats, row: Ints) -> Floats:
        """Acceptance at these probabilities, each read in its row, float64 [nodes]."""
        chances, rows = np.empty(len(prob)), len(self.acceptances)
        for number, curve in enumerate(self.acceptances):
            own = _clipped(row, rows) == number
            chances[own] = np.interp(prob[own], self.scores, curve)
        return chances


@dataclass(frozen=True, eq=False)
class Conditional:
    """Acceptance given the parent's, multiplied along the path, one factor a level.

    A factor is at most 1, so that no child rises above its parent, whatever the ranks.
    It is read from the drafter's probability of a node given its parent, by rank: so
    a drafter that is surest of its best child can be told so at every level, which no
    function of the path's product can.

    Attributes:
        level: curves over the probability of one node given its parent, by rank.
    """

    level: Curves

    def __call__(self, nodes: Nodes) -> Floats:
        """Chance of acceptance of each node, float64 [nodes]."""
        chance = self.level.at(nodes.own_prob, nodes.rank)
        for depth in range(2, int(nodes.depth.max()) + 1):
            here = np.flatnonzero((nodes.depth == depth) & (nodes.parent >= 0))
            chance[here] *= chance[nodes.parent[here]]
        return chance


RAW = Curves(np.array([0.0, 1.0]), np.array([[0.0, 1.0]]))
"""The path probability itself."""


def fit_isotonic(nodes: Nodes) -> Curves:
    """One curve over the path probability."""
    row = np.zeros_like(nodes.rank)
    return _fit_curves(nodes.path_prob, row, nodes.accepted, 1)


def fit_conditional(nodes: Nodes) -> Conditional:
    """Curves by rank, on the nodes whose parent was accepted."""
    own = nodes.take(nodes.parent_accepted)
    row = _clipped(own.rank, RANKS)
    return Conditional(_fit_curves(own.own_prob, row, own.accepted, RANKS))


CURVES: dict[str, Callable[[Nodes], Curves]] = {
    "raw": lambda nodes: RAW,
    "isotonic": fit_isotonic,
}
"""Candidates for the curve of a table, of which it gets the best."""

CANDIDATES: dict[str, Callable[[Nodes], Calibrator]] = {
    **CURVES,
    "level by level, by rank": fit_conditional,
}
"""What is compared; by each, the best k nodes of a tree are closed under ancestors."""


def per_rank_acceptance(steps: Iterable[Step], topk: int) -> Floats:
    """Share of accepted, expanded parents whose child of rank r was accepted.

    Before a level is drafted its path probabilities are unknown; what is known is how
    the children of accepted nodes fared. The root counts as an accepted parent. A
    parent without a recorded child was a leaf of the draft and does not count. A child
    that was drafted and not recorded lost its place in the tree to better nodes, and
    could have committed nothing. At most one child is accepted, so that the shares sum
    to no more than 1.

    Args:
        topk: children drafted for one parent.

    Returns:
        float64 [topk], r = 0..topk - 1; zeros where no parent was accepted.
    """
    hits, parents = np.zeros(topk), 0
    for step in steps:
        accepted_parent = np.concatenate([step.accepted, [True]])[step.parent]
        parents += len(np.unique(step.parent[accepted_parent]))
        hits += np.bincount(step.rank[step.accepted], minlength=topk)[:topk]
    return hits / max(parents, 1)


def nodes_of(replies: Sequence[Reply]) -> Nodes:
    """The nodes of all trees of some replies, one at least, in the replies' order."""
    numbers = prompt_numbers(replies)
    steps = [step for reply in replies for step in reply.steps]
    prompt_of_tree = np.repeat(numbers, [len(reply.steps) for reply in replies])
    sizes = [len(step.path_prob) for step in steps]
    tree = np.repeat(np.arange(len(steps)), sizes)
    start = np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)
    path_prob, depth, rank, accepted, above = (
        np.concatenate([getattr(step, name) for step in steps])
        for name in ("path_prob", "depth", "rank", "accepted", "parent")
    )
    parent = np.where(above >= 0, above + start, -1)
    own_prob = path_prob / np.maximum(_of_parent(path_prob, parent, 1.0), 1e-300)
    return Nodes(
        path_prob=path_prob,
        depth=depth,
        rank=rank,
        accepted=accepted,
        prompt=prompt_of_tree[tree],
        tree=tree,
        place=rank_within(tree, path_prob),
        own_prob=np.minimum(own_prob, 1.0),
        parent=parent,
        parent_accepted=_of_parent(accepted, parent, True),
    )


def prompt_names(replies: Sequence[Reply]) -> list[tuple[str, int]]:
    """Workload and prompt of each prompt number, sorted."""
    return sorted({(reply.workload, reply.prompt) for reply in replies})


def prompt_numbers(replies: Sequence[Reply]) -> list[int]:
    """The number of the prompt of each reply, from 0.

    Replies to one prompt share it, whatever their seeds and temperatures.
    """
    number = {name: i for i, name in enumerate(prompt_names(replies))}
    return [number[reply.workload, reply.prompt] for reply in replies]


def _fit_curves(prob: Floats, row: Ints, accepted: Bools, rows: int) -> Curves:
    """Isotonic regression by row, on bins of probability.

    Each bin promises as many acceptances, so that each cell's share has about the
    same relative error; bins of as many nodes would nearly all lie under 0.01. A cell
    starts from one node that fares as its bin does, whatever its row: a cell without
    nodes of its own has that to go by.
    """
    bins = _bins(prob)
    count = int(bins.max()) + 1
    cell = row * count + bins
    seen = np.bincount(cell, minlength=rows * count).reshape(rows, count)
    hits = np.bincount(cell, accepted, rows * count).reshape(rows, count)
    in_bin = seen.sum(axis=0)
    pooled = isotonic_regression(hits.sum(axis=0) / in_bin, weights=in_bin).x
    weight = seen + 1.0
    fit = [
        isotonic_regression(own, weights=weights).x
        for own, weights in zip((hits + pooled) / weight, weight, strict=True)
    ]
    return _curves(np.bincount(bins, prob) / in_bin, np.stack(fit))


def _bins(prob: Floats) -> Ints:
    """The bin of each node, from 0; every bin has nodes."""
    ordered = np.sort(prob)
    promised = np.cumsum(ordered)
    shares = promised[-1] * np.arange(1, BINS) / BINS
    edges = np.unique(ordered[np.searchsorted(promised, shares)])
    bins = np.searchsorted(edges, prob, side="right")
    return np.unique(bins, return_inverse=True)[1]


def _curves(mean_score: Floats, fit: Floats) -> Curves:
    """Knots at the bins' mean scores, 0 at 0, and the last bin's value up to 1."""
    scores = np.round(np.concatenate([[0.0], mean_score, [1.0]]), DIGITS)
    chances = np.hstack([np.zeros((len(fit), 1)), fit, fit[:, -1:]])
    # A bin of nothing but zeros or ones has its mean at an end: the end is enough.
    kept = np.unique(scores, return_index=True)[1]
    return Curves(scores[kept], np.round(np.clip(chances[:, kept], 0.0, 1.0), 5))


def _of_parent(values: Any, parent: Ints, root: Any) -> Any:
    return np.where(parent >= 0, values[parent], root)


def _clipped(values: Ints, count: int) -> Ints:
    return np.minimum(values, count - 1)
