"""Counts of distinct experts, against sets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.unions import union_by_tokens, union_by_window


@given(
    st.integers(1, 12), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**32 - 1)
)
def test_equals_counting_sets(tokens, layers, top_k, seed):
    rng = np.random.default_rng(seed)
    routes = rng.integers(0, 6, (tokens, layers, top_k)).astype(np.int16)
    slow = [
        np.mean([len(set(routes[:t, layer].ravel())) for layer in range(layers)])
        for t in range(tokens + 1)
    ]
    assert union_by_tokens(routes, experts=6) == pytest.approx(slow)


@given(
    st.integers(1, 12), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**32 - 1)
)
def test_windows_equal_counting_sets(tokens, layers, top_k, seed):
    rng = np.random.default_rng(seed)
    routes = rng.integers(0, 6, (tokens, layers, top_k)).astype(np.int16)
    width = int(rng.integers(1, tokens + 1))
    starts = [range(tokens - n + 1) for n in range(width + 1)]
    slow = [
        [
            np.mean([len(set(routes[s : s + n, layer].ravel())) for s in starts[n]])
            for n in range(width + 1)
        ]
        for layer in range(layers)
    ]
    assert union_by_window(routes, width) == pytest.approx(np.array(slow))
