"""Routing in Triton kernels, run by its interpreter, equals the tensor operations."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evict_profile.runtime.budget import MODES, RANKINGS, route, route_by_tensors
from tests.runtime.test_budget import layers

pytest.importorskip("triton", reason="triton is not installed, so no kernel can run")
from evict_profile.runtime import budget_fused

rankings = pytest.mark.parametrize("ranking", RANKINGS)


def same(probabilities, top_k, kept, **asked):
    """Both paths name the same experts, with weights equal to rounding."""
    ours = budget_fused.route(probabilities, top_k, kept, **asked)
    theirs = route_by_tensors(probabilities, top_k, kept, **asked)
    assert torch.equal(ours.topk_ids, theirs.topk_ids)
    exact = 0.0 if not asked["renormalise"] else 1e-6
    torch.testing.assert_close(
        ours.topk_weights, theirs.topk_weights, rtol=exact, atol=0.0, equal_nan=True
    )


def asking(renormalise, mode, ranking, node_weights=None):
    """The arguments that are named."""
    return {
        "renormalise": renormalise,
        "mode": mode,
        "ranking": ranking,
        "node_weights": node_weights,
    }


def parts(*shape):
    """Multiples of 1/64 of few values: exact sums, many ties."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(0, 9, shape, generator=generator) / 64.0


@settings(max_examples=60, deadline=None)
@given(layers(), st.booleans(), st.sampled_from(MODES), st.sampled_from(RANKINGS))
def test_equal_on_every_small_layer(layer, renormalise, mode, ranking):
    """Ties, zeros, weights of zero and single tokens included."""
    rows, top_k, kept, weights = layer
    node_weights = None if weights is None else torch.tensor(weights)
    asked = asking(renormalise, mode, ranking, node_weights)
    same(torch.tensor(rows), top_k, kept, **asked)


@rankings
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(61, 64, 4, 16), (33, 160, 8, 32), (5, 72, 6, 72)])
def test_equal_over_several_blocks(shape, mode, ranking):
    """More tokens and experts than a program takes at a time, many of them equal."""
    tokens, experts, top_k, kept = shape
    weights = parts(tokens)
    asked = asking(True, mode, ranking, weights)
    same(parts(tokens, experts), top_k, kept, **asked)


@rankings
@pytest.mark.parametrize("mode", MODES)
def test_neighbours_among_floats_keep_their_order(mode, ranking):
    """To the last bit."""
    bits = torch.tensor([[0.5]]).view(torch.int32) + torch.arange(20).int() // 2
    asked = asking(False, mode, ranking)
    same(bits.view(torch.float32), 6, 20, **asked)


@rankings
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_floats_count_as_float32(dtype, mode, ranking):
    """As in the tensor code."""
    asked = asking(False, mode, ranking)
    same(parts(7, 20).to(dtype), 3, 5, **asked)


@rankings
@pytest.mark.parametrize("mode", MODES)
def test_inputs_need_not_lie_end_to_end(mode, ranking):
    """Transposed probabilities, and weights with a stride."""
    probabilities, weights = parts(20, 7).t(), parts(7, 2)[:, 0]
    asked = asking(True, mode, ranking, weights)
    same(probabilities, 3, 5, **asked)


@rankings
@pytest.mark.parametrize("mode", MODES)
def test_a_broken_row_stays_its_own(mode, ranking):
    """Its weights are NaN, its experts are kept ones, and it ranks nothing."""
    probabilities = parts(6, 20)
    probabilities[2] = float("nan")
    asked = asking(True, mode, ranking)
    same(probabilities, 3, 5, **asked)


def test_kernels_are_taken_where_they_are_asked_for(monkeypatch):
    """And nowhere else: nobody has run them on a GPU yet."""
    asked = []

    def noted(*given, **named):
        asked.append(named["ranking"])
        return route_by_tensors(*given, **named)

    monkeypatch.setattr(budget_fused, "route", noted)
    for fused in (False, True):
        route(parts(6, 8), 2, 4, renormalise=True, ranking="top-k", fused=fused)
    assert asked == ["top-k"]
