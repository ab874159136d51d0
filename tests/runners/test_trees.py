"""Forced routes activate exactly U experts, whatever else they leave to chance."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runners.protocol import Refusal
from runners.trees import force_union, random_parents, tree_mask

seeds = st.integers(0, 2**31 - 1)


@st.composite
def places(draw):
    tokens = draw(st.integers(1, 32))
    experts = draw(st.integers(1, 64))
    top_k = draw(st.integers(1, min(8, experts)))
    union = draw(st.integers(top_k, min(experts, tokens * top_k)))
    return tokens, top_k, experts, union


def counts(routes):
    return routes.unique(return_counts=True)[1]


@given(places(), seeds)
def test_the_union_is_exact_and_experts_of_a_token_are_distinct(place, seed):
    tokens, top_k, experts, union = place
    routes = force_union(*place, seed)
    assert routes.shape == (tokens, top_k)
    assert len(routes.unique()) == union
    assert routes.min() >= 0 and routes.max() < experts
    assert all(len(set(row)) == len(row) for row in routes.tolist())
    assert torch.equal(routes, force_union(*place, seed))


@given(places(), seeds)
def test_balanced_counts_differ_by_one_at_most(place, seed):
    dealt = counts(force_union(*place, seed))
    assert dealt.max() - dealt.min() <= 1


def test_seeds_choose_other_experts():
    """Which experts run is a nuisance, so it is drawn anew for each sample."""
    chosen = {tuple(force_union(4, 2, 64, 8, s).unique()) for s in range(20)}
    assert len(chosen) == 20


@pytest.mark.parametrize("union", [1, 3, 13, 33])
def test_infeasible_union_is_refused(union):
    """3 tokens of top-4 activate 4 to 12 of 32; the numbers are in the message."""
    with pytest.raises(Refusal, match=f"3 tokens x top-4 of 32 .* activate {union}"):
        force_union(3, 4, 32, union, 0)


@given(st.integers(1, 4), st.integers(1, 48), seeds)
def test_a_parent_comes_before_its_child(batch, width, seed):
    parents = random_parents(batch, width, seed)
    assert parents.shape == (batch, width - 1)
    assert (parents >= 0).all() and (parents <= torch.arange(width - 1)).all()


def test_trees_differ_by_seed_and_request():
    """One shape would make a nuisance factor look like a constant."""
    drawn = {
        tuple(row) for seed in range(20) for row in random_parents(2, 16, seed).tolist()
    }
    assert len(drawn) == 40


def test_a_node_sees_its_ancestors_and_itself():
    # Nodes 1 and 2 are children of the root, node 0; 3 of 1, and 4 of 3.
    seen = tree_mask([0, 0, 1, 3]).int().tolist()
    rows = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0]]
    assert seen == [*rows, [1, 1, 0, 1, 1]]
