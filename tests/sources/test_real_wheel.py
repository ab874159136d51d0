"""What is wrong in the public rows is refused for its reason, and what is right passes.

Needs the wheel: installed, or where PUBLIC_ROWS says it lies.
"""

import os
import re
from pathlib import Path

import pytest

from evict_profile.config import load_model
from evict_profile.errors import ConfigError
from evict_profile.io import data_root
from evict_profile.records import read_mapping
from evict_profile.sources.aiconfigurator import open_source
from evict_profile.sources.experts import ExpertRows
from evict_profile.sources.gates import expert_gates, slowdown_gate
from evict_profile.sources.pairs import kernels_of, pairs
from evict_profile.sources.parts import Parts
from tests.sources.public_rows import tree_of


@pytest.fixture(scope="module")
def source():
    place = os.environ.get("PUBLIC_ROWS")
    try:
        return open_source(Path(place) if place else None)
    except ConfigError as error:
        pytest.skip(f"no public rows here: {error}")


SLOW = r"slope: an expert implies 0\.[12]\d of peak"
LABEL = r".*as bf16 weights were read"


@pytest.mark.parametrize(
    ("model", "gpu", "engine", "version", "dtype", "tp", "says"),
    [
        ("qwen3-30b-a3b", "h100", "vllm", "0.24.0", "fp8", 1, SLOW),
        ("qwen3-30b-a3b", "h200", "vllm", "0.24.0", "fp8", 1, SLOW),
        ("gpt-oss-120b", "h200", "sglang", "0.5.14", "mxfp4", 1, LABEL),
        ("gpt-oss-120b", "b200", "trtllm", "1.3.0rc20", "mxfp4", 1, LABEL),
        ("qwen3-235b-a22b", "h200", "vllm", "0.19.0", "int4", 1, LABEL),
        ("qwen3-30b-a3b", "h200", "sglang", "0.5.14", "bf16", 1, "$"),
        ("gpt-oss-120b", "h100", "vllm", "0.24.0", "mxfp4", 1, "$"),
        ("deepseek-v3", "h200", "trtllm", "1.3.0rc20", "fp8_block", 8, "$"),
        ("deepseek-v3", "h200", "sglang", "0.5.14", "fp8_block", 8, "$"),
    ],
)
def test_an_experts_kernel_is_refused_for_its_reason(
    source, model, gpu, engine, version, dtype, tp, says
):
    named = (load_model(model), gpu, engine, dtype)
    [pair] = kernels_of(source, *named, tp, version)
    failed = [g for g in expert_gates(ExpertRows.of(source, pair)) if not g.passed]
    assert re.match(says, " | ".join(f"{gate.name}: {gate.message}" for gate in failed))


@pytest.mark.parametrize("gpu", ["h100", "h200", "b200", "b300"])
def test_block_products_of_vllm_time_the_host(source, gpu):
    model = load_model("qwen3-235b-a22b")
    [pair, *_] = [
        pair
        for pair in pairs(source, source.gpu(gpu), "vllm", model)
        if (pair.version, pair.dtype) == ("0.24.0", "fp8_block")
    ]
    gate = slowdown_gate(Parts(source, pair, model), "fp8_block")
    assert not gate.passed
    assert "the host was timed" in gate.message


def test_the_listed_deployments_are_those_of_the_rows(source):
    listed = read_mapping(data_root() / "configs/public_rows.yaml")
    model = load_model("mixtral-8x7b")
    assert tree_of(source, model) == listed[model.name]


def test_minimum_latency_rows_of_a_small_model_are_not_offered(source):
    found = pairs(source, "b200_sxm", "trtllm", load_model("mixtral-8x7b"))
    assert not [pair for pair in found if "min_latency" in pair.kernel]
