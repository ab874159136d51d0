"""The forward computes what a plain loop over tokens computes, by the kernel that the
table names, in the memory that was counted before it was taken."""

import itertools
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.attention import SDPBackend

from runners.torch_moe import stack as stack_module
from runners.torch_moe.attention import (
    KERNELS,
    kernel_of,
    make_attention,
    make_metadata,
)
from runners.torch_moe.model import Experts, MoeLayer, Router
from runners.torch_moe.stack import Stack, fitting_layers, layer_bytes, non_moe_bytes
from runners.trees import force_union, random_parents, tree_mask

CPU = torch.device("cpu")
BATCH, WIDTH, CONTEXT = 2, 7, 11
SLOTS = (BATCH, CONTEXT + WIDTH)


def random_tree_mask(width, seed):
    return tree_mask(random_parents(1, width, seed)[0].tolist())


def draw(*sizes):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(1))


def metadata_of(shape, tree):
    meta = make_metadata(shape, BATCH, len(tree), CONTEXT, CPU)
    meta.set_tree(tree)
    return meta


def turned(x, position):
    half = x.shape[-1] // 2
    rates = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.polar(torch.ones(half, dtype=torch.float64), position * rates)
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double()) * angle
    return torch.cat([pairs.real, pairs.imag], dim=-1).float()


def by_root_paths(layer, tree, attended):
    """Every node of every request by itself: one head's attention over its root path.

    Args:
        attended: of a request, a path and a head, its query [dim], and the keys and
            values [n, dim] of context and path.
    """
    a, out = layer.spec, []
    for request, node in itertools.product(range(BATCH), range(WIDTH)):
        path = [int(i) for i in tree[node].nonzero()]
        for head in range(a.num_heads):
            query, keys, values = attended(request, path, head)
            scale = len(query) ** -0.5
            out.append((keys @ query * scale).softmax(dim=0) @ values)
    return F.linear(torch.stack(out).view(BATCH * WIDTH, -1), layer.out)


def reference_gqa(layer, x, tree):
    a, past = layer.spec, [t.clone() for t in layer.cache.tensors]
    rows = [layer.query_rows, layer.key_rows, layer.key_rows]
    parts = F.linear(x, layer.qkv).split(rows, dim=-1)
    q, k, v = (p.view(BATCH, WIDTH, -1, a.head_dim) for p in parts)
    q, k = F.rms_norm(q, q.shape[-1:]), F.rms_norm(k, k.shape[-1:])

    def attended(b, path, head):
        kv = head // (a.num_heads // a.num_kv_heads)
        own = [turned(k[b, i, kv], CONTEXT + d) for d, i in enumerate(path)]
        keys = torch.cat([past[0][b, kv, :CONTEXT], torch.stack(own)])
        values = torch.cat([past[1][b, kv, :CONTEXT], v[b, path, kv]])
        return turned(q[b, path[-1], head], CONTEXT + len(path) - 1), keys, values

    return by_root_paths(layer, tree, attended)


def reference_mla(layer, x, tree):
    """Keys and values of every head are spelt out: nothing is absorbed."""
    a, past = layer.spec, layer.cache.tensors[0].clone()
    low, rank = F.linear(x, layer.query_down), layer.spec.kv_lora_rank
    query = F.linear(F.rms_norm(low, low.shape[-1:]), layer.query_up)
    query = query.view(BATCH, WIDTH, a.num_heads, -1)
    latent = F.linear(x, layer.latent).view(BATCH, WIDTH, -1)

    def attended(b, path, head):
        keyed = [turned(latent[b, i, rank:], CONTEXT + d) for d, i in enumerate(path)]
        own = torch.cat([latent[b, path, :rank], torch.stack(keyed)], dim=-1)
        seen = torch.cat([past[b, 0, :CONTEXT], own])
        body, rotary = seen[:, :rank], seen[:, rank:]
        keys = torch.cat([body @ layer.absorb_key[head].T, rotary], dim=-1)
        plain, turn = query[b, path[-1], head].split([a.head_dim, a.qk_rope_dim])
        turn = turned(turn, CONTEXT + len(path) - 1)
        return torch.cat([plain, turn]), keys, body @ layer.absorb_value[head]

    return by_root_paths(layer, tree, attended)


@pytest.mark.parametrize("union", [2, 5, 8])
def test_experts_equal_a_loop_over_tokens(small, noise, union):
    """The grouped products mix each token's experts, however tokens are grouped."""
    shape = small()
    experts = Experts(shape, noise)
    routes = force_union(6, 2, 8, union, seed=4)
    x, weights = draw(6, shape.hidden), draw(6, 2).softmax(dim=-1)
    expected = torch.zeros_like(x)
    for token in range(6):
        for slot in range(2):
            expert = int(routes[token, slot])
            gate, up = (experts.gate_up[expert] @ x[token]).chunk(2)
            out = experts.down[expert] @ (F.silu(gate) * up)
            expected[token] += weights[token, slot] * out
    torch.testing.assert_close(experts(x, routes, weights), expected)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("mla", "reference"), [(False, reference_gqa), (True, reference_mla)]
)
def test_attention_equals_each_root_path_by_itself(small, noise, seed, mla, reference):
    shape, tree = small(mla=mla), random_tree_mask(WIDTH, seed)
    layer = make_attention(shape, 0, SLOTS, noise)
    x = draw(BATCH * WIDTH, shape.hidden)
    expected = reference(layer, x, tree)
    torch.testing.assert_close(layer(x, metadata_of(shape, tree)), expected)


def test_windowed_attention_reads_the_window_only(small, noise):
    """Every other layer has the window."""
    shape, tree = small(sliding_window=4), random_tree_mask(WIDTH, 0)
    layers = [make_attention(shape, i, SLOTS, noise) for i in range(4)]
    assert [layer.window for layer in layers] == [4, 0, 4, 0]
    x, meta = draw(BATCH * WIDTH, shape.hidden), metadata_of(shape, tree)
    before = layers[0](x, meta).clone()
    for first, end, same in ((0, CONTEXT - 4, True), (CONTEXT - 4, CONTEXT - 3, False)):
        for tensor in layers[0].cache.tensors:
            tensor[:, :, first:end] = 7.0
        assert torch.allclose(layers[0](x, meta), before, rtol=0, atol=0) is same


def test_metadata_take_one_tree_after_another(small):
    fresh, used = (metadata_of(small(), random_tree_mask(WIDTH, n)) for n in (1, 2))
    used.set_tree(random_tree_mask(WIDTH, 1))
    assert torch.equal(used.mask, fresh.mask)
    assert all(map(torch.equal, used.angles, fresh.angles))


def test_router_keeps_the_top_k_with_weights_of_one(small, noise):
    shape = small()
    router, x = Router(shape, noise), draw(9, shape.hidden)
    routes, weights = router(x)
    best = F.linear(x, router.weight).topk(2, dim=-1).indices
    assert torch.equal(routes.sort().values, best.sort().values)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(9))


def test_group_limited_router_stays_in_the_best_groups(small, noise):
    """Experts come from the groups with the best two scores summed, and no other."""
    shape = small(num_experts=16, router="sigmoid", groups=4, groups_kept=2, top_k=3)
    router, x = Router(shape, noise), draw(50, shape.hidden)
    routes, weights = router(x)
    scores = F.linear(x, router.weight).sigmoid()
    strength = scores.view(50, 4, 4).sort().values[..., -2:].sum(dim=-1)
    for token in range(50):
        kept = set(strength[token].topk(2).indices.tolist())
        assert {e // 4 for e in routes[token].tolist()} <= kept
        allowed = [e for e in range(16) if e // 4 in kept]
        best = sorted(allowed, key=lambda e: -float(scores[token, e]))[:3]
        assert set(routes[token].tolist()) == set(best)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(50))
    free = scores.topk(3, dim=-1).indices
    assert not torch.equal(routes.sort().values, free.sort().values)


def test_a_layer_runs_the_forced_routes(small, noise):
    """Forced routes are left as given and change the output; others are written."""
    shape = small(shared_width=8)
    layer = MoeLayer(shape, make_attention(shape, 0, SLOTS, noise), noise)
    meta = metadata_of(shape, random_tree_mask(WIDTH, 0))
    x = draw(BATCH * WIDTH, shape.hidden)
    one, two = (force_union(BATCH * WIDTH, 2, 8, 4, seed) for seed in (1, 2))
    given = one.clone()
    assert not torch.allclose(*(layer(x, meta, each, True) for each in (one, two)))
    assert torch.equal(one, given)
    layer(x, meta, one, False)
    assert not torch.equal(one, given)


def test_weights_differ_and_keep_activations_in_range(small, noise):
    """Their deviation is one over the root of the inner size."""
    experts = Experts(small(), noise).gate_up.flatten(1)
    assert len(torch.unique(experts, dim=0)) == 8
    assert float(noise.weight(300, 64).std()) == pytest.approx(1 / 8, rel=0.05)


@pytest.mark.parametrize("changes", [{}, {"mla": True}, {"sliding_window": 4}])
def test_a_kernel_is_asked_for_with_the_layouts_that_run(
    small, noise, monkeypatch, changes
):
    """Of queries, keys, values and mask."""
    shape = small(**changes)
    attention = make_attention(shape, 0, SLOTS, noise)
    meta = make_metadata(shape, BATCH, WIDTH, CONTEXT, CPU)
    run, pick = Mock(wraps=F.scaled_dot_product_attention), Mock(return_value=3)
    monkeypatch.setattr(F, "scaled_dot_product_attention", run)
    monkeypatch.setattr(torch, "_fused_sdp_choice", pick)
    attention(noise.weight(BATCH * WIDTH, shape.hidden), meta)
    assert kernel_of(attention, meta) == "cudnn"
    ran = [*run.call_args.args, run.call_args.kwargs["attn_mask"]]
    for own, asked in zip(ran, pick.call_args.args, strict=True):
        assert (own.shape, own.stride()) == (asked.shape, asked.stride())


def test_kernels_have_torch_s_numbers():
    names = {"math": "MATH", "flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
    names |= {"efficient": "EFFICIENT_ATTENTION", "overrideable": "OVERRIDEABLE"}
    for number, name in KERNELS.items():
        assert getattr(SDPBackend, names[name]).value == number


def taken(thing):
    """Bytes of all weights and caches below it."""
    if isinstance(thing, Tensor):
        return thing.nbytes if thing.is_floating_point() else 0
    if type(thing).__module__.startswith("runners."):
        thing = list(vars(thing).values())
    return sum(map(taken, thing)) if isinstance(thing, list | tuple) else 0


@pytest.mark.parametrize("mla", [False, True])
@pytest.mark.parametrize("shared_width", [0, 24])
def test_memory_is_counted_to_the_byte(small, noise, mla, shared_width):
    shape = small(mla=mla, shared_width=shared_width, dense_layers=2, dense_width=40)
    built = Stack(shape, SLOTS, noise)
    assert taken(built.moe[0]) == layer_bytes(shape, SLOTS)
    rest = taken([built.dense, built.embedding, built.head])
    assert rest == non_moe_bytes(shape, SLOTS)


def test_layers_fill_nine_tenths_of_the_memory(small, monkeypatch):
    shape = small()
    free = (non_moe_bytes(shape, SLOTS) + 3.5 * layer_bytes(shape, SLOTS)) / 0.9
    monkeypatch.setattr(stack_module, "free_bytes", lambda _: int(free))
    assert fitting_layers(shape, SLOTS, CPU) == 3
