"""A layer from others: found again where layers follow one law, doubted where not."""

import numpy as np
import pandas as pd
import pytest

from evict_profile.config import load_model
from evict_profile.sources.aiconfigurator import open_source
from evict_profile.sources.compose import composer_of
from evict_profile.sources.experts import ExpertRows
from evict_profile.sources.gates import expert_gates, misfit
from evict_profile.sources.near import NearRows
from evict_profile.sources.pairs import kernels_of
from evict_profile.sources.unions import balanced_union
from tests.sources.wheel import (
    GPU,
    PAIR,
    PEAK_GBPS,
    TOKENS,
    moe_rows,
    write_rows,
    write_wheel,
)

SMALL = load_model("glm-4.5-air")
SHAPES = [(4096, 1536, 8, 128), (2048, 1024, 8, 64), (3072, 1536, 8, 256)]


def law_us(pair, tokens, union):
    """An expert takes its bytes over a bandwidth, and a token a time by its size."""
    read_us = pair.bytes_per_expert / (0.8 * PEAK_GBPS) / 1e3
    token_us = 2e-4 * read_us * pair.shape[2] * tokens
    return 15.0 + read_us * union + token_us


def layer(shape, tp=1, times=1.0):
    pair = PAIR._replace(shape=shape, tp=tp)
    rows = [
        {
            "num_tokens": n,
            "distribution": "balanced",
            "us": times * law_us(pair, n, balanced_union(n, shape[3], shape[2])),
        }
        for n in TOKENS
    ]
    return ExpertRows(pair, pd.DataFrame(rows), PEAK_GBPS)


LAYERS = tuple(layer(shape) for shape in SHAPES)
NONE = LAYERS[0].rows.iloc[:0]


def test_a_layer_without_rows_follows_the_law_of_the_others():
    near = NearRows(PAIR, NONE, PEAK_GBPS, LAYERS)
    tokens, union = np.array([1.0, 64.0]), np.array([8.0, 100.0])
    expected = [law_us(PAIR, *place) for place in zip(tokens, union, strict=True)]
    assert near.us(tokens, union) == pytest.approx(expected, rel=1e-6)
    assert misfit(near) < 1e-6
    assert all(gate.passed for gate in expert_gates(near))
    assert "from 3 layers near by: " in near.origin


def test_the_error_is_that_of_layers_left_out():
    odd = (*LAYERS[:2], layer(SHAPES[2], times=1.05))
    assert 0.02 < misfit(NearRows(PAIR, NONE, PEAK_GBPS, odd)) < 0.3


@pytest.mark.parametrize("layers", [LAYERS[:1], ()])
def test_too_few_layers_identify_nothing(layers):
    [gate] = expert_gates(NearRows(PAIR, NONE, PEAK_GBPS, layers))
    assert not gate.passed
    assert "near by" in gate.message


def test_a_model_without_rows_is_composed_from_those_of_others(tmp_path):
    root = write_wheel(tmp_path)
    others = [
        row | {"hidden_size": hidden, "inter_size": width, "us": us * row["us"]}
        for hidden, width, us in ((4096, 1536, 4.0), (4096, 1024, 2.5))
        for row in moe_rows()
    ]
    write_rows(root, "moe", [*moe_rows(), *others])
    source = open_source(root)
    kernels = kernels_of(source, SMALL, GPU, "sglang", "bf16", 2)
    assert [pair.tp for pair in kernels] == [2]
    found = composer_of(source, kernels, SMALL).experts
    assert len(found.nearest) == 3
