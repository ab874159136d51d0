"""Monotone curves of acceptance, fitted to trees that were verified whole."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression

from evict_profile.stats import Bools, Floats, Ints
from evict_profile.traces import Nodes

MOST_KNOTS = 32
BINS = MOST_KNOTS - 2
RANKS = 4
DIGITS = 7

Calibrator = Callable[[Nodes], Floats]


@dataclass(frozen=True)
class Curves:
    """Acceptance over a probability, linear between knots.

    `acceptances` is [rows, knots]: one row for path probabilities, one a rank for
    conditional ones, whose last serves all higher ranks.
    """

    scores: Floats
    acceptances: Floats

    def __call__(self, nodes: Nodes) -> Floats:
        return self.at(nodes.path_prob, np.zeros_like(nodes.rank))

    @property
    def knots(self) -> tuple[tuple[float, ...], tuple[tuple[float, ...], ...]]:
        rows = (tuple(row) for row in self.acceptances.tolist())
        return tuple(self.scores.tolist()), tuple(rows)

    def at(self, prob: Floats, row: Ints) -> Floats:
        """Acceptance at `prob`, each by its row of the curves, float64 [nodes]."""
        chances, rows = np.empty(len(prob)), len(self.acceptances)
        for number, curve in enumerate(self.acceptances):
            in_row = np.minimum(row, rows - 1) == number
            chances[in_row] = np.interp(prob[in_row], self.scores, curve)
        return chances


@dataclass(frozen=True, eq=False)
class Conditional:
    level: Curves

    def __call__(self, nodes: Nodes) -> Floats:
        chance = self.level.at(nodes.own_prob, nodes.rank)
        for depth in range(2, int(nodes.depth.max()) + 1):
            here = np.flatnonzero(nodes.depth == depth)
            chance[here] *= chance[nodes.parent[here]]
        return chance


RAW = Curves(np.array([0.0, 1.0]), np.array([[0.0, 1.0]]))
"""The path probability itself."""


def fit_isotonic(nodes: Nodes) -> Curves:
    one = np.zeros_like(nodes.rank)
    return _fit_curves(nodes.path_prob, one, nodes.accepted, 1)


def fit_conditional(nodes: Nodes) -> Conditional:
    reached = nodes.parent_accepted
    rank = np.minimum(nodes.rank[reached], RANKS - 1)
    curves = _fit_curves(nodes.own_prob[reached], rank, nodes.accepted[reached], RANKS)
    return Conditional(curves)


CURVES: dict[str, Callable[[Nodes], Curves]] = {
    "raw": lambda nodes: RAW,
    "isotonic": fit_isotonic,
}
"""Candidates for the table's curve."""

CANDIDATES: dict[str, Callable[[Nodes], Calibrator]] = {
    **CURVES,
    "conditional": fit_conditional,
}
"""All calibrators; each keeps the best k nodes closed under ancestors."""


def per_rank_acceptance(nodes: Nodes, topk: int) -> Floats:
    """Share of expanded, accepted parents whose child of each rank was accepted.

    It is float64 [topk], of sum at most 1; the root counts as accepted.
    """
    parents = len(np.unique(nodes.family[nodes.parent_accepted]))
    hits = np.bincount(nodes.rank[nodes.accepted], minlength=topk)[:topk]
    return hits / max(parents, 1)


def _fit_curves(prob: Floats, row: Ints, accepted: Bools, rows: int) -> Curves:
    """Isotonic regression by row over bins of equal total probability.

    The prior is one node in each cell, accepted as its bin is over all rows.
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
        isotonic_regression(share, weights=weights).x
        for share, weights in zip((hits + pooled) / weight, weight, strict=True)
    ]
    return _curves(np.bincount(bins, prob) / in_bin, np.stack(fit))


def bins_of_mass(prob: Floats, most: int) -> Ints:
    ordered = np.sort(prob)
    promised = np.cumsum(ordered)
    shares = promised[-1] * np.arange(1, most) / most
    edges = np.unique(ordered[np.searchsorted(promised, shares)])
    bins = np.searchsorted(edges, prob, side="right")
    return np.unique(bins, return_inverse=True)[1]


def _curves(mean_score: Floats, fit: Floats) -> Curves:
    scores = np.round(np.concatenate([[0.0], mean_score, [1.0]]), DIGITS)
    chances = np.hstack([np.zeros((len(fit), 1)), fit, fit[:, -1:]])
    # A bin of nothing but zeros or ones has its mean at an end: the end is enough.
    kept = np.unique(scores, return_index=True)[1]
    return Curves(scores[kept], np.round(np.clip(chances[:, kept], 0.0, 1.0), 5))
