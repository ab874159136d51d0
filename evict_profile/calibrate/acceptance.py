"""Acceptance of draft nodes, learnt from trees that were verified whole.

A curve turns path probability into the chance of acceptance. It never falls, so that
the best k nodes stay the best k. Where a runtime has the parents of nodes, conditional
acceptances by rank order them better.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression

from evict_profile.stats import Bools, Floats, Ints
from evict_profile.traces import Nodes

MOST_KNOTS = 32
BINS = MOST_KNOTS - 2
"""The scores 0 and 1 are knots as well."""
RANKS = 4
"""Ranks fitted apart; the last serves all higher ones, which are rarely right."""
DIGITS = 7

Calibrator = Callable[[Nodes], Floats]
"""Chance of acceptance of each node, float64 [nodes]."""


@dataclass(frozen=True)
class Curves:
    """Acceptance over a probability, linear between knots.

    `acceptances` are [rows, knots]; the last row serves all after it. Path
    probabilities have one row, and probabilities given the parent one a rank.
    """

    scores: Floats
    acceptances: Floats

    def __call__(self, nodes: Nodes) -> Floats:
        """Chance of acceptance by the first row, float64 [nodes]."""
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
            own = np.minimum(row, rows - 1) == number
            chances[own] = np.interp(prob[own], self.scores, curve)
        return chances


@dataclass(frozen=True, eq=False)
class Conditional:
    """Acceptance given the parent's, multiplied along the path, one factor a level.

    A factor is at most 1, so that no child rises above its parent. It is read by rank
    from the drafter's probability given the parent: a drafter that is surest of its
    best child is corrected at every level, which no function of the product can.
    """

    level: Curves

    def __call__(self, nodes: Nodes) -> Floats:
        """Chance of acceptance of each node, float64 [nodes]."""
        chance = self.level.at(nodes.own_prob, nodes.rank)
        for depth in range(2, int(nodes.depth.max()) + 1):
            here = np.flatnonzero(nodes.depth == depth)
            chance[here] *= chance[nodes.parent[here]]
        return chance


RAW = Curves(np.array([0.0, 1.0]), np.array([[0.0, 1.0]]))
"""The path probability itself."""


def fit_isotonic(nodes: Nodes) -> Curves:
    """One curve over the path probability."""
    one = np.zeros_like(nodes.rank)
    return _fit_curves(nodes.path_prob, one, nodes.accepted, 1)


def fit_conditional(nodes: Nodes) -> Conditional:
    """Curves by rank, on the nodes whose parent was accepted."""
    own = nodes.parent_accepted
    rank = np.minimum(nodes.rank[own], RANKS - 1)
    curves = _fit_curves(nodes.own_prob[own], rank, nodes.accepted[own], RANKS)
    return Conditional(curves)


CURVES: dict[str, Callable[[Nodes], Curves]] = {
    "raw": lambda nodes: RAW,
    "isotonic": fit_isotonic,
}
"""Candidates for the curve of a table, of which it gets the best."""

CANDIDATES: dict[str, Callable[[Nodes], Calibrator]] = {
    **CURVES,
    "conditional": fit_conditional,
}
"""What is compared; by each, the best k nodes of a tree are closed under ancestors."""


def per_rank_acceptance(nodes: Nodes, topk: int) -> Floats:
    """Share of accepted, expanded parents whose child of each rank was accepted.

    This is what is known of a level before it is drafted; float64 [topk], which sum to
    1 at most. The root counts as an accepted parent, and a parent without a recorded
    child does not count.
    """
    parents = len(np.unique(nodes.family[nodes.parent_accepted]))
    hits = np.bincount(nodes.rank[nodes.accepted], minlength=topk)[:topk]
    return hits / max(parents, 1)


def _fit_curves(prob: Floats, row: Ints, accepted: Bools, rows: int) -> Curves:
    """Isotonic regression by row, on bins of probability.

    The probabilities of each bin sum to as much, so that the cells' shares have about
    the same relative error; bins of as many nodes would nearly all lie under 0.01. A
    cell starts from one node that fares as its bin does, whatever its row.
    """
    bins = bins_of_mass(prob, BINS)
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


def bins_of_mass(prob: Floats, most: int) -> Ints:
    """Each node's bin, from 0; probabilities of a bin sum to as much, none is empty."""
    ordered = np.sort(prob)
    promised = np.cumsum(ordered)
    shares = promised[-1] * np.arange(1, most) / most
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
