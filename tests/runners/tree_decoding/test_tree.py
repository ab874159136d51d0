"""Draft trees: what is kept of them stays a tree."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runners.tree_decoding.tree import Trees, ancestors, best_first


@st.composite
def trees(draw: st.DrawFn) -> Trees:
    """Trees grown level by level, with ties."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    batch, topk = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    found = Trees.empty(batch)
    parents = np.full((batch, 1), -1)
    above = np.ones((batch, 1), dtype=np.float32)
    for _ in range(draw(st.integers(1, 4))):
        start = found.token.shape[1]
        chance = rng.choice([1.0, 0.5, 0.25], (batch, parents.shape[1], topk))
        prob = (above[:, :, None] * chance).astype(np.float32).reshape(batch, -1)
        token = rng.integers(0, 50, prob.shape)
        found = found.grow(np.repeat(parents, topk, axis=1), token, prob)
        chosen = np.argsort(-prob, axis=1, kind="stable")[:, :topk]
        parents, above = start + chosen, np.take_along_axis(prob, chosen, axis=1)
    return found


def paths(tree: Trees, request: int) -> set[tuple[int, ...]]:
    """Each node as the tokens and probabilities on its way from the root."""
    made: list[tuple[int, ...]] = []
    columns = (tree.token, tree.parent, tree.path_prob)
    for token, parent, prob in zip(
        *(c[request].tolist() for c in columns), strict=True
    ):
        made.append((*(made[parent] if parent >= 0 else ()), token, prob))
    return set(made)


@given(trees(), st.integers(1, 40))
def test_the_best_are_a_tree_of_the_same_paths(tree: Trees, nodes: int) -> None:
    best = tree.best(nodes)
    for request in range(len(tree.token)):
        assert paths(best, request) <= paths(tree, request)
        expected = np.sort(-tree.path_prob[request])[:nodes]
        np.testing.assert_array_equal(np.sort(-best.path_prob[request]), expected)
        assert (best.parent[request] < np.arange(len(best.parent[request]))).all()


@given(trees(), st.integers(1, 40))
def test_a_trace_holds_what_any_depth_and_width_verify(tree: Trees, nodes: int) -> None:
    one = tree.of(0)
    held = paths(one.any_best(nodes), 0)
    deepest = int(one.depth.max())
    for depth in range(1, deepest + 1):
        reached = one.take(np.flatnonzero(one.depth[0] <= depth)[None])
        for width in (1, nodes // 2, nodes):
            assert paths(reached.best(width), 0) <= held


def test_a_parent_wins_a_tie_with_its_child() -> None:
    prob = np.array([[0.5, 0.25, 0.5]], dtype=np.float32)
    assert best_first(prob).tolist() == [[0, 2, 1]]


def test_a_node_sees_its_ancestors_and_itself() -> None:
    # Root 0; nodes 1 and 2 its children; node 3 below 1; node 4 below 3.
    seen = ancestors(np.array([-1, -1, 0, 2]))
    assert [np.flatnonzero(row).tolist() for row in seen] == [
        [0],
        [0, 1],
        [0, 2],
        [0, 1, 3],
        [0, 1, 3, 4],
    ]
