"""Candidates that turn a node's path probability into its chance of acceptance.

A runtime can use curves: non-decreasing in the path probability, so that the best k
nodes stay the best k, and never higher for a deeper node, so that no child rises above
its parent. Where it knows the parents of nodes it can follow links as well, level by
level. The others (by depth and rank, logistic) are fitted to say what that restriction
costs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import expit

from evict_profile.calibrate.monotone import monotone_fit
from evict_profile.calibrate.nodes import Nodes
from evict_profile.stats import Floats, Ints

MOST_KNOTS = 32
BINS = MOST_KNOTS - 2
"""The scores 0 and 1 are knots as well."""
RANKS = 4
"""Ranks fitted apart; the last serves all higher ones, which are rarely right."""
DIGITS = 7

Calibrator = Callable[[Nodes], Floats]


@dataclass(frozen=True)
class Curves:
    """Acceptance over path probability, linear between knots.

    Attributes:
        scores: [K], increasing from 0 to 1.
        acceptances: [ranks, depths, K]; the last rank and the last depth serve all
            higher ones.
    """

    scores: Floats
    acceptances: Floats

    def __call__(self, nodes: Nodes) -> Floats:
        """Chance of acceptance of each node, float64 [nodes]."""
        ranks, depths, _ = self.acceptances.shape
        row = _clipped(nodes.rank, ranks) * depths + _clipped(nodes.depth - 1, depths)
        chances = np.empty(len(nodes))
        for number, curve in enumerate(self.acceptances.reshape(ranks * depths, -1)):
            own = row == number
            chances[own] = np.interp(nodes.path_prob[own], self.scores, curve)
        return chances


RAW = Curves(np.array([0.0, 1.0]), np.array([[[0.0, 1.0]]]))
"""The path probability itself."""


def fit_curves(nodes: Nodes, depths: int, ranks: int) -> Curves:
    """Isotonic regression by depth and rank, on bins of path probability.

    Each bin promises as many acceptances, so that each cell's share has about the
    same relative error; bins of as many nodes would nearly all lie under 0.01. A cell
    starts from one node that fares as its bin does, whatever its depth and rank: a
    cell without nodes of its own has that to go by.
    """
    bins = _bins(nodes.path_prob)
    count = int(bins.max()) + 1
    whole = (ranks, depths, count)
    cell = np.ravel_multi_index(
        (_clipped(nodes.rank, ranks), _clipped(nodes.depth - 1, depths), bins), whole
    )
    seen = np.bincount(cell, minlength=ranks * depths * count).reshape(whole)
    hits = np.bincount(cell, nodes.accepted, ranks * depths * count).reshape(whole)
    in_bin = seen.sum(axis=(0, 1))
    pooled = isotonic_regression(hits.sum(axis=(0, 1)) / in_bin, weights=in_bin).x
    weight = (seen + 1.0).astype(np.float64)
    fit = monotone_fit((hits + pooled) / weight, weight, rising=(False, False, True))
    mean_score = np.bincount(bins, nodes.path_prob) / in_bin
    return _curves(mean_score, fit)


def _bins(path_prob: Floats) -> Ints:
    """The bin of each node, from 0; every bin has nodes."""
    ordered = np.sort(path_prob)
    promised = np.cumsum(ordered)
    shares = promised[-1] * np.arange(1, BINS) / BINS
    edges = np.unique(ordered[np.searchsorted(promised, shares)])
    bins = np.searchsorted(edges, path_prob, side="right")
    return np.unique(bins, return_inverse=True)[1]


def _curves(mean_score: Floats, fit: Floats) -> Curves:
    """Knots at the bins' mean scores, 0 at 0, and the last bin's value up to 1."""
    scores = np.round(np.concatenate([[0.0], mean_score, [1.0]]), DIGITS)
    ends = np.zeros((*fit.shape[:-1], 1))
    chances = np.concatenate([ends, fit, fit[..., -1:]], axis=-1)
    # A bin of nothing but zeros or ones has its mean at an end: the end is enough.
    kept = np.unique(scores, return_index=True)[1]
    return Curves(scores[kept], np.round(np.clip(chances[..., kept], 0.0, 1.0), 5))


@dataclass(frozen=True, eq=False)
class Links:
    """Chances multiplied along the path, one factor a level.

    A factor is at most 1, so that no child rises above its parent, whatever the ranks.
    It is read from the drafter's probability of a node given its parent, by rank: so
    a drafter that is surest of its best child can be told so at every level, which no
    function of the path's product can.

    Attributes:
        level: curves over the probability of one node given its parent; one depth.
    """

    level: Curves

    def __call__(self, nodes: Nodes) -> Floats:
        """Chance of acceptance of each node, float64 [nodes]."""
        chance = np.ones(len(nodes))
        for number in range(nodes.level_prob.shape[1]):
            there = np.flatnonzero(nodes.depth > number)
            own = nodes.take(there)
            chance[there] *= self.level(
                _as_one_level(own, own.level_prob[:, number], own.level_rank[:, number])
            )
        return chance


def fit_links(nodes: Nodes) -> Links:
    """Isotonic curves by rank, on the nodes whose parent was accepted."""
    own = nodes.take(nodes.parent_accepted)
    row, last = np.arange(len(own)), own.depth - 1
    one_level = _as_one_level(own, own.level_prob[row, last], own.rank)
    return Links(fit_curves(one_level, depths=1, ranks=RANKS))


def _as_one_level(nodes: Nodes, prob: Floats, rank: Ints) -> Nodes:
    return replace(nodes, path_prob=prob, rank=rank)


def fit_logistic(nodes: Nodes) -> Calibrator:
    """Logistic regression on log path probability, depth and rank, by Newton's steps.

    The small ridge only keeps separable data finite.
    """
    x, y = _features(nodes), nodes.accepted.astype(np.float64)
    beta = np.zeros(x.shape[1])
    for _ in range(50):
        chance = expit(x @ beta)
        curvature = (x * (chance * (1.0 - chance))[:, None]).T @ x
        gradient = x.T @ (y - chance) - 1e-3 * beta
        step = np.linalg.solve(curvature + 1e-3 * np.eye(len(beta)), gradient)
        beta = beta + np.clip(step, -2.0, 2.0)
        if np.abs(step).max() < 1e-8:
            break
    return lambda others: expit(_features(others) @ beta)


def _features(nodes: Nodes) -> Floats:
    score = np.log(np.maximum(nodes.path_prob, 1e-12))
    return np.stack([np.ones(len(nodes)), score, nodes.depth, nodes.rank], axis=1)


def _clipped(values: Ints, count: int) -> Ints:
    return np.minimum(values, count - 1)


LEVEL_BY_LEVEL = "level by level, by rank"

CANDIDATES: dict[str, Callable[[Nodes], Calibrator]] = {
    "raw": lambda nodes: RAW,
    "isotonic": lambda nodes: fit_curves(nodes, depths=1, ranks=1),
    "isotonic by depth": lambda nodes: fit_curves(nodes, deepest(nodes), ranks=1),
    "isotonic by depth and rank": lambda nodes: fit_curves(
        nodes, deepest(nodes), RANKS
    ),
    "logistic": fit_logistic,
    LEVEL_BY_LEVEL: fit_links,
}
"""What is compared."""
USABLE = ("raw", "isotonic", "isotonic by depth")
"""Candidates that are curves by depth alone, as a table holds them."""
CLOSED = (*USABLE, LEVEL_BY_LEVEL)
"""Candidates by which the best k nodes of a tree are closed under ancestors."""


def deepest(nodes: Nodes) -> int:
    """The depth of the deepest node."""
    return int(nodes.depth.max())
