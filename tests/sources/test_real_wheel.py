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
from evict_profile.sources.aiconfigurator import PACKAGE, open_source
from evict_profile.sources.experts import ExpertRows
from evict_profile.sources.gates import expert_gates
from evict_profile.sources.pairs import KernelKey, kernels_of, pairs, shape_of
from evict_profile.sources.parts import Parts
from evict_profile.sources.rows import KernelRows
from tests.sources.public_rows import tree_of


@pytest.fixture(scope="module")
def source():
    place = os.environ.get("PUBLIC_ROWS")
    try:
        return open_source(Path(place) if place else None)
    except ConfigError as error:
        pytest.skip(f"no public rows here: {error}")


@pytest.fixture
def first(source):
    """The release that the list was written from."""
    if source.package != PACKAGE:
        pytest.skip(f"of {PACKAGE} alone")
    return source


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


def test_the_row_that_its_authors_found_wrong_is_left_out(first):
    """MiniMax-M3 in NVFP4, 16 tokens on 8 groups of B300: 909 us beside 86 and 114."""
    shape = shape_of(load_model("minimax-m3"))
    kernel = "vllm_compressedtensorsw4a4nvfp4moe_flashinfer_cutlass_flashinferexperts"
    pair = KernelKey("b300_sxm", "vllm", "0.24.0", kernel, "nvfp4", shape, 1, 8)
    rows = ExpertRows.of(first, pair)
    assert (rows.rows["us"].between(909.0, 910.0)).sum() == 1
    assert rows.strays == 2
    assert rows.routings["us"].max() < 909.0


def kernel(gpu, engine, version, model, tp):
    named = (gpu, engine, version, "any", "fp8_block")
    return KernelKey(*named, shape_of(load_model(model)), tp, 1)


@pytest.mark.parametrize(
    ("gpu", "near"), [("h100", "fp8"), ("h200", "fp8"), ("b200", "bfloat16")]
)
def test_block_products_of_vllm_time_the_host(source, gpu, near):
    asked = kernel(source.gpu(gpu), "vllm", "0.24.0", "qwen3-235b-a22b", 1)
    assert set(KernelRows(source, asked).products("fp8_block")["gemm_dtype"]) == {near}


@pytest.mark.parametrize(
    ("model", "gpu", "engine", "version", "tp", "backend"),
    [
        ("glm-5", "h200_sxm", "sglang", "0.5.14", 4, "sglang_dsa_indexer_fa3"),
        ("deepseek-v3.2", "b200_sxm", "vllm", "0.24.0", 8, "FLASHINFER_MLA_SPARSE"),
        ("minimax-m3", "h200_sxm", "vllm", "0.24.0", 4, "vllm_flash_attn_fa3"),
        ("deepseek-v4-flash", "h200_sxm", "sglang", "0.5.14", 4, "compressed_flashmla"),
        ("qwen3-next-80b-a3b", "h100_sxm", "vllm", "0.24.0", 4, "vllm_flash_attn_fa3"),
        ("kimi-k3", "b200_sxm", "sglang", "0.5.14", 8, "trtllm_mla"),
    ],
)
def test_layers_of_every_kind_are_costed_by_their_rows(
    source, model, gpu, engine, version, tp, backend
):
    """A verifying layer takes longer than to read its weights and states once."""
    parts = Parts(source, kernel(gpu, engine, version, model, tp), load_model(model))
    assert (parts.mixers.without_kernels, parts.mixers.kernel) == ((), backend)
    one, eight = (parts.attention(n, 1024, 1) for n in (1, 8))
    assert 3.0 < one.us <= 1.05 * eight.us < 400.0
    assert eight.low <= eight.us <= eight.high


def test_the_listed_deployments_are_those_of_the_rows(first):
    listed = read_mapping(data_root() / "configs/public_rows.yaml")
    model = load_model("mixtral-8x7b")
    assert tree_of(first, model) == listed[model.name]


def test_minimum_latency_rows_of_a_small_model_are_not_offered(source):
    found = pairs(source, "b200_sxm", "trtllm", load_model("mixtral-8x7b"))
    assert not [pair for pair in found if "min_latency" in pair.kernel]
