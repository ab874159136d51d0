"""What is wrong in the public rows is refused for its reason, and what is right passes.

Needs the wheel: installed, or where PUBLIC_ROWS says it lies.
"""

import os
import re
from functools import cache
from pathlib import Path

import pytest

from evict_profile.config import load_model
from evict_profile.errors import ConfigError
from evict_profile.sources.aiconfigurator import Source, open_source
from evict_profile.sources.experts import ExpertRows
from evict_profile.sources.gates import expert_gates, slowdown_gate
from evict_profile.sources.pairs import Wanted, pairs, the_pair
from evict_profile.sources.parts import Parts


@cache
def real_source() -> Source | str:
    """The wheel, or why there is none."""
    place = os.environ.get("PUBLIC_ROWS")
    try:
        return open_source(Path(place) if place else None)
    except ConfigError as error:
        return str(error)


@pytest.fixture
def source() -> Source:
    found = real_source()
    if isinstance(found, str):
        pytest.skip(f"no public rows here: {found}")
    return found


def first_failure(source: Source, model: str, wanted: Wanted) -> str:
    """Name and message of the first gate that a pair fails; "" where it passes."""
    pair = the_pair(source, load_model(model), wanted)
    failed = [g for g in expert_gates(ExpertRows.of(source, pair)) if not g.passed]
    return " | ".join(f"{gate.name}: {gate.message}" for gate in failed)


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_an_untuned_fp8_kernel_is_refused_by_its_bandwidth(
    source: Source, gpu: str
) -> None:
    found = first_failure(source, "qwen3-30b-a3b", Wanted(gpu, "vllm", "0.24.0", "fp8"))
    assert re.match(r"slope: an expert implies 0\.[12]\d of peak", found)


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        ("gpt-oss-120b", Wanted("h200", "sglang", "0.5.14", "mxfp4")),
        ("gpt-oss-120b", Wanted("b200", "trtllm", "1.3.0rc20", "mxfp4")),
        ("qwen3-235b-a22b", Wanted("h200", "vllm", "0.19.0", "int4")),
    ],
)
def test_four_bit_labels_on_bf16_weights_are_found_out(
    source: Source, model: str, wanted: Wanted
) -> None:
    assert "as bf16 weights were read" in first_failure(source, model, wanted)


@pytest.mark.parametrize("gpu", ["h100", "h200", "b200", "b300"])
def test_block_products_of_vllm_time_the_host(source: Source, gpu: str) -> None:
    model = load_model("qwen3-235b-a22b")
    [pair, *_] = [
        pair
        for pair in pairs(source, source.gpu(gpu), "vllm", model)
        if (pair.version, pair.dtype) == ("0.24.0", "fp8_block")
    ]
    gate = slowdown_gate(Parts(source, pair, model), "fp8_block")
    assert not gate.passed
    assert "the host was timed" in gate.message


def test_minimum_latency_rows_of_a_small_model_are_not_offered(source: Source) -> None:
    found = pairs(source, "b200_sxm", "trtllm", load_model("mixtral-8x7b"))
    assert not [pair for pair in found if "min_latency" in pair.kernel]


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        ("qwen3-30b-a3b", Wanted("h200", "sglang", "0.5.14", "bf16")),
        ("gpt-oss-120b", Wanted("h100", "vllm", "0.24.0", "mxfp4")),
        ("deepseek-v3", Wanted("h200", "trtllm", "1.3.0rc20", "fp8_block", tp=8)),
        ("deepseek-v3", Wanted("h200", "sglang", "0.5.14", "fp8_block", tp=8)),
    ],
)
def test_rows_that_are_right_pass(source: Source, model: str, wanted: Wanted) -> None:
    assert first_failure(source, model, wanted) == ""
