"""Forced routes activate exactly U experts, whatever else they leave to chance."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runners.protocol import Refusal
from runners.torch_moe.routing import force_union, random_tree_mask

seeds = st.integers(0, 2**31 - 1)


@st.composite
def places(draw):
    """(tokens, top_k, experts, union) for which a routing exists."""
    tokens = draw(st.integers(1, 32))
    experts = draw(st.integers(1, 64))
    top_k = draw(st.integers(1, min(8, experts)))
    union = draw(st.integers(top_k, min(experts, tokens * top_k)))
    return tokens, top_k, experts, union


def counts(routes):
    return routes.unique(return_counts=True)[1]


@given(places(), st.booleans(), seeds)
def test_the_union_is_exact_and_experts_of_a_token_are_distinct(place, skewed, seed):
    tokens, top_k, experts, union = place
    routes = force_union(*place, skewed, seed)
    assert routes.shape == (tokens, top_k)
    assert len(routes.unique()) == union
    assert routes.min() >= 0 and routes.max() < experts
    assert all(len(set(row)) == len(row) for row in routes.tolist())
    assert torch.equal(routes, force_union(*place, skewed, seed))


@given(places(), seeds)
def test_balanced_counts_differ_by_one_at_most(place, seed):
    """Slots are dealt out in turns."""
    dealt = counts(force_union(*place, False, seed))
    assert dealt.max() - dealt.min() <= 1


@given(seeds)
def test_skewed_is_clearly_uneven_where_it_can_be(seed):
    """16 tokens an expert when balanced; Zipf activates one twice as much."""
    assert counts(force_union(64, 4, 64, 16, False, seed)).unique().tolist() == [16]
    uneven = counts(force_union(64, 4, 64, 16, True, seed))
    assert uneven.max() >= 2 * uneven.double().median()


def test_seeds_choose_other_experts():
    """Which experts run is a nuisance, so it is drawn anew for each sample."""
    chosen = {tuple(force_union(4, 2, 64, 8, False, s).unique()) for s in range(20)}
    assert len(chosen) == 20


@pytest.mark.parametrize("union", [1, 3, 13, 33])
def test_infeasible_union_is_refused(union):
    """3 tokens of top-4 activate 4 to 12 of 32; the numbers are in the message."""
    with pytest.raises(Refusal, match=f"3 tokens x top-4 of 32 .* activate {union}"):
        force_union(3, 4, 32, union, False, 0)


@given(st.integers(1, 48), seeds)
def test_tree_mask_is_of_one_tree(width, seed):
    """All see themselves and the root, and each other node has one parent.

    The parent is the ancestor that sees one node less; who sees a node sees all that
    the node sees.
    """
    mask = random_tree_mask(width, seed)
    sees, depth = mask.double(), mask.sum(dim=1) - 1
    assert mask.diagonal().all() and mask[:, 0].all()
    assert not mask.triu(1).any()
    assert torch.equal(sees @ sees > 0, mask)
    for node in range(1, width):
        ancestors = mask[node].nonzero().flatten()[:-1]
        assert sorted(depth[ancestors].tolist()) == list(range(depth[node]))


def test_trees_differ_by_seed():
    shapes = {tuple(random_tree_mask(8, s).flatten().tolist()) for s in range(20)}
    assert len(shapes) > 10
