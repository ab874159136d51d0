"""Draft trees: what is kept of them stays a tree; what of them is accepted."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples.small_world.engine.accept import accepted_path, make_sampler
from examples.small_world.engine.tree import Trees, ancestors, best_first
from tests.examples.small_world.engine.decoding import best_of

CPU = torch.device("cpu")


@st.composite
def trees(draw):
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


def paths(tree, request):
    """Each node as the tokens and probabilities on its way from the root."""
    made: list[tuple[int, ...]] = []
    columns = (tree.token, tree.parent, tree.path_prob)
    for token, parent, prob in zip(
        *(c[request].tolist() for c in columns), strict=True
    ):
        made.append((*(made[parent] if parent >= 0 else ()), token, prob))
    return set(made)


@given(trees(), st.integers(1, 40))
def test_the_best_are_a_tree_of_the_same_paths(tree, nodes):
    kept = best_of(tree, nodes)
    for request in range(len(tree.token)):
        assert paths(kept, request) <= paths(tree, request)
        assert (kept.parent[request] < np.arange(len(kept.parent[request]))).all()


@given(trees(), st.integers(1, 40), st.integers(1, 16))
def test_what_is_beyond_the_best_is_told_of_the_last_nodes(tree, nodes, fresh):
    fresh = min(fresh, tree.token.shape[1])
    beyond = tree.beyond_best(nodes, fresh)
    for row, order in zip(beyond, best_first(tree.path_prob).tolist(), strict=True):
        drafted = range(len(order) - fresh, len(order))
        assert row.tolist() == [order.index(node) >= nodes for node in drafted]


@given(trees(), st.integers(1, 40))
def test_a_trace_holds_what_any_depth_and_width_verify(tree, nodes):
    one = tree.of(0)
    held = paths(one.any_best(nodes), 0)
    for depth in range(1, int(one.depth.max()) + 1):
        reached = one.take(np.flatnonzero(one.depth[0] <= depth)[None])
        for width in (1, nodes // 2, nodes):
            assert paths(best_of(reached, width), 0) <= held


def test_a_parent_wins_a_tie_with_its_child():
    prob = np.array([[0.5, 0.25, 0.5]], dtype=np.float32)
    assert best_first(prob).tolist() == [[0, 2, 1]]


def test_a_node_sees_its_ancestors_and_itself():
    # Root 0; nodes 1 and 2 its children; node 3 below 1; node 4 below 3.
    seen = ancestors(np.array([-1, -1, 0, 2]))
    expected = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 3, 4]]
    assert [np.flatnonzero(row).tolist() for row in seen] == expected


def test_gumbel_s_trick_draws_from_the_softmax():
    places, vocab, temperature = 40_000, 4, 0.7
    logits = torch.tensor([0.3, -1.0, 0.9, 0.0])
    sampler = make_sampler(temperature, 5, places, vocab, CPU)
    tokens = sampler(logits.expand(places, vocab), np.arange(places))
    counts = np.bincount(tokens, minlength=vocab)
    expected = (logits / temperature).softmax(dim=0).numpy() * places
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    # The 99.9 % quantile with three degrees of freedom; the seed is fixed.
    assert chi_square < 16.3


def test_noise_belongs_to_the_place_and_not_to_the_call():
    logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    sampler = make_sampler(1.0, 1, 30, 9, CPU)
    together = sampler(logits, np.arange(10, 16))
    alone = [sampler(logits[i : i + 1], np.array([10 + i]))[0] for i in range(6)]
    assert together == alone


@given(
    st.lists(st.tuples(st.integers(-1, 8), st.integers(0, 2)), max_size=9), st.data()
)
def test_the_path_is_the_longest_that_the_target_s_tokens_take(drawn, data):
    edges: list[tuple[int, int]] = []
    for up, token in drawn:
        edge = (min(up, len(edges) - 1), token)
        if edge not in edges:
            edges.append(edge)
    parent, token = [e[0] for e in edges], [e[1] for e in edges]
    size = len(edges) + 1
    wanted = data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    at = -1
    for node in accepted_path(token, parent, wanted):
        assert parent[node] == at and token[node] == wanted[at + 1]
        at = node
    assert (at, wanted[at + 1]) not in edges
