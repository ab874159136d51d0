"""Unions of the collector's samplers, against brute force and what is known of them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.sources.experts import balanced_union
from tests.sources.wheel import PAIR


@given(
    per_rank=st.integers(1, 12),
    ep=st.integers(1, 4),
    top_k=st.integers(1, 8),
    tokens=st.integers(1, 40),
)
def test_plain_routing_takes_what_the_sampler_wants(per_rank, ep, top_k, tokens):
    experts = per_rank * ep
    top_k = min(top_k, experts)
    stride = math.ceil(experts / top_k)
    step = 1.0 if tokens >= stride else stride / tokens
    chosen: set[int] = set()
    for token in range(tokens):
        start = (
            np.float32(token) * np.float32(step)
            if step == 1.0
            else (np.float32(token) * np.float32(stride) / np.float32(tokens))
        )
        wanted = [int((start + j * stride) % experts) for j in range(top_k)]
        rest = [e for e in range(experts) if e not in wanted]
        ranked = sorted(set(wanted), key=lambda e: (-wanted.count(e), e))
        chosen |= set((ranked + rest)[:top_k])
    expected = sum(expert < per_rank for expert in chosen)
    assert balanced_union(tokens, experts, top_k, ep) == expected


@pytest.mark.parametrize(("experts", "top_k"), [(128, 8), (256, 8), (32, 4), (384, 8)])
def test_even_layouts_activate_all_slots(experts, top_k):
    for tokens in (1, 2, 3, 8, 31, 100, 500):
        expected = min(experts, tokens * top_k)
        assert balanced_union(tokens, experts, top_k) == expected
    assert balanced_union(32, 512, 10) == 316  # an uneven layout
    # Grouped routing cannot follow the sampler.
    found = [
        balanced_union(n, 256, 8, 1, grouped=True) for n in (1, 2, 4, 8, 16, 32, 64)
    ]
    assert found == [8, 12, 20, 35, 66, 128, 128]


def test_the_router_follows_engine_kernel_and_shape():
    deepseek, qwen = (7168, 2048, 8, 256), (2048, 768, 8, 128)
    for engine, version, kernel, shape, grouped in (
        ("sglang", "0.5.14", "triton", deepseek, True),
        ("vllm", "0.24.0", "triton", deepseek, True),
        ("sglang", "0.5.10", "triton", deepseek, False),
        ("trtllm", "1.3.0rc20", "cutlass", deepseek, False),
        ("sglang", "0.5.14", "triton", qwen, False),
        ("trtllm", "1.3.0rc20", "flow_min_latency", qwen, True),
    ):
        named = {"engine": engine, "version": version, "kernel": kernel}
        assert PAIR._replace(**named, shape=shape).grouped == grouped
