"""Small draft trees, every ancestor-closed set of them, and the best of those.

Probabilities are multiples of powers of two and costs are whole numbers, so that sums
are exact in floating point and every tie is a real one.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

from evict_profile.records import replace
from evict_profile.runtime import Calibration, ConditionalAcceptance
from evict_profile.runtime.costs import ALLOCATIONS, pools_of, reachable_costs
from evict_profile.runtime.decision import OBJECTIVES, Terms, decide

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


class Rule(NamedTuple):
    """What is maximised, and over which pools."""

    objective: str = "ratio"
    allocation: str = "batch"

    def costs(self, cost_us, batch, nodes, capture_sizes=None):
        pools = pools_of(self.allocation, batch)
        cost = np.array(cost_us, float)
        return reachable_costs(cost, batch, nodes, pools, capture_sizes)

    def decide(self, path_prob, costs, terms, scores=None):
        """Nodes are ranked by scores, and equals by path probability."""
        if self.objective == "ratio":
            terms = replace(terms, rate=math.nan)
        shown = np.ascontiguousarray(path_prob, np.float64)
        pools = pools_of(self.allocation, len(shown))
        if scores is None:
            return decide(shown, costs, pools, terms)
        return decide(scores, costs, pools, terms, shown)

    def pools(self, batch):
        return pools_of(self.allocation, batch)


RULES = st.builds(Rule, st.sampled_from(OBJECTIVES), st.sampled_from(ALLOCATIONS))
TERMS = st.builds(
    Terms,
    acceptance_ratio=st.sampled_from([0.5, 1.0, 2.0]),
    tokens=st.sampled_from([0.0, 1.0, 6.5]),
    us=st.sampled_from([0.0, 3.0, 8.0]),
    rate=st.sampled_from([0.0, 0.0625, 0.125, 0.25, 0.5, 1.0]),
)


ROWS = st.lists(st.sampled_from(SHARES), min_size=4, max_size=4).map(
    lambda row: (0.0, *sorted(row))
)
CALIBRATIONS = st.builds(Calibration, st.just(SHARES), ROWS)
LINKS = st.builds(
    ConditionalAcceptance,
    st.just(SHARES),
    st.lists(ROWS, min_size=1, max_size=3).map(tuple),
)
"""Sums of what these make of dyadic trees are exact, so that each tie is a real one."""


@dataclass(frozen=True)
class Tree:
    """One request's draft: parents[i] < i, or -1 under the root."""

    parents: tuple[int, ...]
    path_prob: tuple[float, ...]

    def is_closed(self, kept):
        return all(p < 0 or kept[p] for i, p in enumerate(self.parents) if kept[i])

    def best_sums(self):
        """The largest sum over all closed sets of each size."""
        best = [Fraction(-1)] * (len(self.parents) + 1)
        for kept in product((False, True), repeat=len(self.parents)):
            if self.is_closed(kept):
                chosen = [p for p, k in zip(self.path_prob, kept, strict=True) if k]
                total = sum(map(Fraction, chosen), Fraction())
                best[len(chosen)] = max(best[len(chosen)], total)
        return best


def scores_by_hand(links, tree):
    scores: list[float] = []
    for node, parent in enumerate(tree.parents):
        above = tree.path_prob[parent] if parent >= 0 else 1.0
        share = tree.path_prob[node] / above if above else 0.0
        own = (-tree.path_prob[node], node)
        rank = sum(
            (-tree.path_prob[other], other) < own
            for other, theirs in enumerate(tree.parents)
            if theirs == parent
        )
        row = links.acceptances[min(rank, len(links.acceptances) - 1)]
        factor = float(np.interp(share, links.scores, row))
        scores.append(factor * (scores[parent] if parent >= 0 else 1.0))
    return tuple(scores)


@st.composite
def trees(draw, most=6):
    """A tree of 0 to `most` nodes whose path probabilities never rise."""
    count = draw(st.integers(0, most))
    parents = tuple(draw(st.integers(-1, i - 1)) for i in range(count))
    path: list[float] = []
    for parent in parents:
        above = 1.0 if parent < 0 else path[parent]
        path.append(above * draw(st.sampled_from(SHARES)))
    return Tree(parents, tuple(path))


@st.composite
def shuffles(draw, path_prob):
    """Nodes in any order in which equals keep theirs, so that parents come first."""
    order = draw(st.permutations(range(len(path_prob))))
    for value in set(path_prob):
        places = [place for place, node in enumerate(order) if path_prob[node] == value]
        for place, node in zip(places, sorted(order[p] for p in places), strict=True):
            order[place] = node
    return list(order)


def forests(most_trees=3):
    return st.lists(trees(), min_size=1, max_size=most_trees)


def padded(forest):
    nodes = max(len(tree.parents) for tree in forest)
    rows = [[*t.path_prob, *[0.0] * (nodes - len(t.path_prob))] for t in forest]
    return torch.tensor(rows).reshape(len(forest), nodes)


def costs(forest):
    size = len(forest) * (padded(forest).shape[1] + 1) + 1
    return st.lists(st.integers(1, 12), min_size=size, max_size=size)


def with_padding(tree, nodes):
    """The tree with zero-probability nodes under its root, as a batch is padded."""
    more = nodes - len(tree.parents)
    return Tree(tree.parents + (-1,) * more, tree.path_prob + (0.0,) * more)


def best_total(forest, cost_us, rule, terms, capture_sizes=None):
    """The smallest total among the optima over all closed sets, and its best sum."""
    nodes = padded(forest).shape[1]
    sums = [with_padding(tree, nodes).best_sums() for tree in forest]
    found: dict[int, Fraction] = {}
    for sizes in product(range(nodes + 1), repeat=len(forest)):
        if rule.allocation == "uniform" and len(set(sizes)) > 1:
            continue
        total = len(forest) + sum(sizes)
        expected = sum((s[k] for s, k in zip(sums, sizes, strict=True)), Fraction())
        found[total] = max(found.get(total, Fraction(-1)), expected)
    values = {}
    for total, expected in found.items():
        size = padded_size(total, len(forest), rule.allocation, capture_sizes)
        if size is not None and size < len(cost_us):
            benefit = len(forest) + Fraction(terms.acceptance_ratio) * expected
            values[total] = value_of(benefit, cost_us[size], rule, terms)
    best = max(values.values())
    total = min(total for total, value in values.items() if value == best)
    return total, found[total]


def value_of(benefit, cost, rule, terms):
    if rule.objective == "rate":
        return benefit - Fraction(terms.rate) * cost
    return (Fraction(terms.tokens) + benefit) / (Fraction(terms.us) + cost)


def padded_size(total, batch, allocation, capture_sizes):
    """Tokens that run when `total` are asked for; None beyond the capture sizes."""
    if capture_sizes is None:
        return total
    unit = batch if allocation == "uniform" else 1
    fitting = [size * unit for size in capture_sizes if size * unit >= total]
    return min(fitting) if fitting else None
