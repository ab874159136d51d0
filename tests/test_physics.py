"""Bytes and operations agree with counts by hand, and grow as they must."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.cells import Cell
from evict_profile.config import AttentionSpec, ModelSpec, MoeSpec
from evict_profile.config.model import LayerSpec
from evict_profile.physics import (
    Work,
    layer_bytes,
    layer_work,
    non_moe_work,
    seen_context,
)
from evict_profile.records import replace

GQA = ModelSpec(
    name="by hand",
    source="made for tests",
    hidden_size=10,
    num_layers=3,
    vocab_size=100,
    attention=AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=5),
    moe=MoeSpec(num_experts=8, top_k=2, expert_width=6, shared_width=7),
    dense_layers=1,
    dense_width=20,
)
QKVO = 10 * 20 + 2 * 10 * 10 + 20 * 10
COMMON = QKVO + 10 * 8 + 3 * 10 * 7
EXPERT = 3 * 10 * 6

forced = st.builds(
    Cell,
    part=st.just("layers"),
    width=st.integers(1, 64),
    union=st.integers(2, 8),
    context=st.integers(1, 4096),
    batch=st.integers(1, 8),
    split=st.just("balanced"),
)


def test_attention_weights_by_hand():
    assert GQA.attention_weights == QKVO


OTHERS = (LayerSpec("linear", 1, 90), LayerSpec("sliding", 1, 1200, window=64))


def test_layers_of_other_kinds_have_their_own_weights_and_context():
    """One of three layers attends to all, one to a window, one to a state."""
    model = replace(GQA, other_layers=OTHERS)
    assert model.attention_weights == (QKVO + 90 + 1200) / 3
    assert seen_context(model, 1000) == pytest.approx((1000 + 64 + 0) / 3)
    assert seen_context(model, 10) == pytest.approx((10 + 10 + 0) / 3)


def test_experts_on_a_latent_without_a_gate_by_hand():
    """Two matrices an expert; into the latent and back once a layer."""
    model = replace(GQA, moe=replace(GQA.moe, gated=False, expert_hidden=4))
    assert model.bytes_per_expert == 2 * 4 * 6 * 2
    shared, latent = 2 * 10 * 7, 2 * 10 * 4
    assert model.common_weights == QKVO + 10 * 8 + shared + latent


def test_keys_of_another_width_and_a_gate_by_hand():
    attention = replace(GQA.attention, qk_head_dim=3, output_gate=True)
    queries, keys, values, rest = 4 * 3, 2 * 3, 2 * 5, 2 * 4 * 5
    weights = 10 * (queries + keys + values + rest)
    assert attention.weights(10) == weights
    assert attention.cache_values_per_token == keys + values


def test_parameters_by_hand():
    dense = QKVO + 3 * 10 * 20
    layers = 2 * (COMMON + 8 * EXPERT) + dense
    assert GQA.total_parameters == layers + 2 * 100 * 10
    assert replace(GQA, tied_embeddings=True).total_parameters == layers + 100 * 10


def test_latent_attention_weights_by_hand():
    """Down and up projection of queries, the latent, its two absorbed maps, output."""
    latent = AttentionSpec(
        num_heads=4,
        num_kv_heads=4,
        head_dim=5,
        kind="mla",
        q_lora_rank=6,
        kv_lora_rank=8,
        qk_rope_dim=2,
    )
    query = 10 * 6 + 6 * 4 * (5 + 2)
    by_hand = query + 10 * (8 + 2) + 8 * 4 * 5 + 8 * 4 * 5 + 4 * 5 * 10
    assert replace(GQA, attention=latent).attention_weights == by_hand


def test_common_weights_by_hand():
    assert GQA.common_weights == COMMON


def test_layer_bytes_by_hand():
    """All experts and the common weights, two bytes each in bfloat16."""
    assert layer_bytes(GQA) == 2 * (8 * EXPERT + COMMON)


def test_non_moe_weights_by_hand():
    assert GQA.non_moe_weights == 100 * 10 + (QKVO + 3 * 10 * 20)


def test_layer_work_by_hand():
    cell = Cell("layers", 3, 5, 16, 2, "balanced")
    work = layer_work(GQA, cell)
    cache = 2 * 16 * (2 * 2 * 5)
    assert work.bytes_moved == 2 * (COMMON + 5 * EXPERT + cache)
    products = 2 * (3 * 2) * (COMMON + 2 * EXPERT)
    scores = 2 * 2 * (3 * 2) * 16 * 4 * 5
    assert work.flops == products + scores


def test_non_moe_work_by_hand():
    """Their weights and the dense layers' cache are read, and no expert."""
    work = non_moe_work(GQA, Cell("non_moe", 3, 0, 16, 2, "natural"))
    weights = 100 * 10 + QKVO + 3 * 10 * 20
    assert work.bytes_moved == 2 * (weights + 2 * 16 * 20)
    assert work.flops == 2 * weights * 6


@given(forced, st.integers(1, 4))
def test_bytes_grow_with_the_union_by_whole_experts(cell, more):
    few, many = layer_work(GQA, cell), layer_work(GQA, cell, union=cell.union + more)
    grown = many.bytes_moved - few.bytes_moved
    assert grown == pytest.approx(more * GQA.bytes_per_expert)
    assert many.flops == few.flops


@given(forced, st.integers(1, 4))
def test_roofline_never_falls_with_the_union(cell, more):
    """The floor under latency is monotone in U at any bandwidth and rate."""
    few, many = layer_work(GQA, cell), layer_work(GQA, cell, union=cell.union + more)
    for rates in ((10.0, 0.001), (4800.0, 989.0)):
        assert many.roofline_us(*rates) >= few.roofline_us(*rates)


def test_roofline_takes_the_slower_of_both():
    """1 GB at 1,000 GB/s is 1,000 us; 1 Tflop at 100 Tflop/s is 10,000 us."""
    assert Work(1e9, 0.0).roofline_us(1000.0, 100.0) == pytest.approx(1000.0)
    assert Work(1e9, 1e12).roofline_us(1000.0, 100.0) == pytest.approx(10_000.0)


@given(st.integers(1, 100_000))
def test_every_layer_sees_all_context_without_a_window(context):
    assert seen_context(GQA, context) == context


@pytest.mark.parametrize(
    ("every", "context", "seen"),
    [(1, 1128, 128.0), (2, 1128, 628.0), (4, 1128, 878.0), (2, 16, 16.0)],
)
def test_windowed_layers_see_their_window(every, context, seen):
    """Of every `every` layers one sees at most 128 tokens, and the others all."""
    windowed = replace(GQA.attention, sliding_window=128, sliding_every=every)
    assert seen_context(replace(GQA, attention=windowed), context) == seen
