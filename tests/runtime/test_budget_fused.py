"""Routing in Triton kernels, run by its interpreter, equals the tensor operations."""

import os
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evict_profile import runtime
from evict_profile.runtime import budget
from evict_profile.runtime.budget import MODES, route_by_tensors
from tests.runtime.test_budget import layers

os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="triton is not installed, so no kernel can run")
from evict_profile.runtime import budget_fused


def same(probabilities, top_k, kept, **asked):
    """Both paths name the same experts, with weights equal to rounding."""
    ours = budget_fused.route(probabilities, top_k, kept, **asked)
    theirs = route_by_tensors(probabilities, top_k, kept, **asked)
    assert torch.equal(ours.topk_ids, theirs.topk_ids)
    exact = 0.0 if not asked["renormalise"] else 1e-6
    torch.testing.assert_close(
        ours.topk_weights, theirs.topk_weights, rtol=exact, atol=0.0, equal_nan=True
    )


def parts(*shape):
    """Multiples of 1/64 of few values: exact sums, many ties."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(0, 9, shape, generator=generator) / 64.0


@settings(max_examples=60, deadline=None)
@given(layers(), st.booleans(), st.sampled_from(MODES))
def test_equal_on_every_small_layer(layer, renormalise, mode):
    """Ties, zeros, weights of zero and single tokens included."""
    rows, top_k, kept, weights = layer
    node_weights = None if weights is None else torch.tensor(weights)
    asked = {"renormalise": renormalise, "mode": mode, "node_weights": node_weights}
    same(torch.tensor(rows), top_k, kept, **asked)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(61, 64, 4, 16), (33, 160, 8, 32), (5, 72, 6, 72)])
def test_equal_over_several_blocks(shape, mode):
    """More tokens and experts than a program takes at a time, many of them equal."""
    tokens, experts, top_k, kept = shape
    weights = parts(tokens)
    asked = {"renormalise": True, "mode": mode, "node_weights": weights}
    same(parts(tokens, experts), top_k, kept, **asked)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_floats_count_as_float32(dtype, mode):
    """As in the tensor code."""
    asked = {"renormalise": False, "mode": mode, "node_weights": None}
    same(parts(7, 20).to(dtype), 3, 5, **asked)


@pytest.mark.parametrize("mode", MODES)
def test_inputs_need_not_lie_end_to_end(mode):
    """Transposed probabilities, and weights with a stride."""
    probabilities, weights = parts(20, 7).t(), parts(7, 2)[:, 0]
    asked = {"renormalise": True, "mode": mode, "node_weights": weights}
    same(probabilities, 3, 5, **asked)


@pytest.mark.parametrize("mode", MODES)
def test_a_broken_row_stays_its_own(mode):
    """Its weights are NaN, its experts are kept ones, and it ranks nothing."""
    probabilities = parts(6, 20)
    probabilities[2] = float("nan")
    asked = {"renormalise": True, "mode": mode, "node_weights": None}
    same(probabilities, 3, 5, **asked)


def test_gpus_route_in_kernels():
    """Nobody has to ask."""
    assert budget._route_on_gpu() is budget_fused.route


def test_without_triton_gpus_route_by_tensors(monkeypatch):
    """It is an optional part of torch."""
    monkeypatch.delattr(runtime, "budget_fused")
    monkeypatch.setitem(sys.modules, budget_fused.__name__, None)
    assert budget._route_on_gpu.__wrapped__() is route_by_tensors
