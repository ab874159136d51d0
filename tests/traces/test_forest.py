"""Flat arithmetic over many trees equals the plain kind, tree by tree."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.traces.trace import Forest

Tree = list[tuple[int, float]]


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Parents, each before its children, and probabilities, with ties."""
    size = draw(st.integers(0, 12))
    chance = st.sampled_from([0.0, 0.25, 0.5, 0.5000001, 1.0])
    return [(draw(st.integers(-1, i - 1)), draw(chance)) for i in range(size)]


def flat(forest: list[Tree]) -> Forest:
    """The trees end to end."""
    tree, parent, path_prob = [], [], []
    for number, nodes in enumerate(forest):
        first = len(parent)
        for above, prob in nodes:
            tree.append(number)
            parent.append(above + first if above >= 0 else -1)
            path_prob.append(prob)
    return Forest(np.array(tree, int), np.array(parent, int), np.array(path_prob))


def plain_depth(tree: Tree, node: int) -> int:
    """Steps to the root."""
    above = tree[node][0]
    return 1 if above < 0 else 1 + plain_depth(tree, above)


def plain_rank(tree: Tree, node: int) -> int:
    """Siblings that are better, or as good and before it."""
    parent, prob = tree[node]
    own = [(-p, i) for i, (above, p) in enumerate(tree) if above == parent]
    return sorted(own).index((-prob, node))


def plain_falling(tree: Tree, node: int) -> float:
    """The least of the path's probabilities."""
    above, prob = tree[node]
    return prob if above < 0 else min(prob, plain_falling(tree, above))


@given(st.lists(trees(), max_size=5))
def test_depth_rank_and_least_on_the_path(forest: list[Tree]) -> None:
    """Each node's, whatever trees stand before it."""
    whole = flat(forest)
    nodes = [(tree, i) for tree in forest for i in range(len(tree))]
    assert whole.depth.tolist() == [plain_depth(*node) for node in nodes]
    assert whole.rank.tolist() == [plain_rank(*node) for node in nodes]
    assert whole.falling.tolist() == [plain_falling(*node) for node in nodes]


@given(st.lists(trees(), max_size=5))
def test_siblings_and_nobody_else_share_a_family(forest: list[Tree]) -> None:
    """Children of two roots are no siblings."""
    family = flat(forest).family.tolist()
    parents = [(k, above) for k, tree in enumerate(forest) for above, _ in tree]
    for i, one in enumerate(parents):
        assert [f == family[i] for f in family] == [one == p for p in parents]
