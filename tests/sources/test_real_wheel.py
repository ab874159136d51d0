"""What is wrong in the public rows is refused for its reason, and what is right passes.

Needs the wheel: installed, or where PUBLIC_ROWS says it lies.
"""

import os
import re
from pathlib import Path

import pytest

from evict_profile.config import load_model
from evict_profile.errors import ConfigError
from evict_profile.sources.aiconfigurator import open_source
from evict_profile.sources.experts import ExpertRows
from evict_profile.sources.gates import expert_gates
from evict_profile.sources.pairs import kernels_of, pairs, shape_of
from evict_profile.sources.rows import KernelRows


@pytest.fixture(scope="module")
def source():
    place = os.environ.get("PUBLIC_ROWS")
    try:
        return open_source(Path(place) if place else None)
    except ConfigError as error:
        pytest.skip(f"no public rows here: {error}")


SLOW = r"slope: an expert implies 0\.[12]\d of peak"


@pytest.mark.parametrize(
    ("model", "gpu", "engine", "dtype", "tp", "says"),
    [
        ("qwen3-30b-a3b", "h100_sxm", "vllm", "fp8", 1, SLOW),
        ("gpt-oss-120b", "h200_sxm", "sglang", "w4a16_mxfp4", 1, SLOW),
        ("gpt-oss-120b", "b200_sxm", "trtllm", "w4a16_mxfp4", 1, SLOW),
        ("qwen3-30b-a3b", "h200_sxm", "sglang", "bf16", 1, "$"),
        ("gpt-oss-120b", "h100_sxm", "vllm", "mxfp4", 1, "$"),
        ("deepseek-v3", "h200_sxm", "trtllm", "fp8_block", 8, "$"),
        ("deepseek-v3", "h200_sxm", "sglang", "fp8_block", 8, "$"),
    ],
)
def test_an_experts_kernel_is_refused_for_its_reason(
    source, model, gpu, engine, dtype, tp, says
):
    kernels = kernels_of(source, load_model(model), gpu, engine, dtype, tp)
    rows = ExpertRows.of(source, kernels[0])
    failed = [gate for gate in expert_gates(rows) if not gate.passed]
    assert re.match(says, " | ".join(f"{gate.name}: {gate.message}" for gate in failed))


@pytest.mark.parametrize(
    ("gpu", "near"),
    [("h100_sxm", "fp8"), ("h200_sxm", "fp8"), ("b200_sxm", "bfloat16")],
)
def test_block_products_of_vllm_time_the_host(source, gpu, near):
    model = load_model("qwen3-235b-a22b")
    [asked, *_] = kernels_of(source, model, gpu, "vllm", "fp8_block", 1)
    assert set(KernelRows(source, asked).products("fp8_block")["gemm_dtype"]) == {near}


def test_minimum_latency_rows_of_a_small_model_are_not_offered(source):
    found = pairs(source, "b200_sxm", "trtllm")
    shape = shape_of(load_model("mixtral-8x7b"))
    own = [pair for pair in found if pair.shape == shape]
    assert own and not [pair for pair in own if "min_latency" in pair.kernel]
