"""The published format of experts, in the words of each program that quantises."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.config import load_model
from evict_profile.config.model import BYTES_PER_VALUE
from evict_profile.errors import ConfigError
from evict_profile.sources.asked import assumption, placement_of
from tests.config.test_huggingface import MIXTRAL, QWEN3_30B, spec


def group(targets=("Linear",), **weights):
    return {"targets": list(targets), "weights": weights}


def packed(*groups, ignore=(), **more):
    """As compressed-tensors writes it."""
    named = {f"group_{n}": each for n, each in enumerate(groups)}
    more |= {"config_groups": named, "ignore": list(ignore)}
    return {"quant_method": "compressed-tensors", **more}


INT4 = {"num_bits": 4, "type": "int", "group_size": 32, "symmetric": True}
FLOAT4 = {"num_bits": 4, "type": "float", "group_size": 16}
FLOAT8 = {"num_bits": 8, "type": "float"}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
MIXED = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
EXPERT, ATTENTION = "model.layers.24.mlp.experts", "model.layers.24.self_attn.q_proj"
BITS = {"quant_method": "bitsandbytes", "load_in_4bit": True}
FP8 = {"quant_method": "fp8"}


def quark(**weight):
    return {"quant_method": "quark", "global_quant_config": {"weight": weight}}


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_algo": "FP8_PB_WO"}, "fp8_block"),
        ({"quant_algo": "MXFP8"}, "mxfp8"),
        ({"quant_algo": "W4A16_AWQ", "group_size": 128}, "int4_g128"),
        ({"quant_algo": "W4A16_NVFP4", "group_size": 16}, "nvfp4"),
        ({"quant_algo": "W4A8_MXFP4_FP8"}, "mxfp4"),
        (MIXED | {"quantized_layers": {EXPERT: {"quant_algo": "NVFP4"}}}, "nvfp4"),
        (MIXED | {"quantized_layers": {ATTENTION: {"quant_algo": "FP8"}}}, "bfloat16"),
        (packed(group(**INT4)), "int4_g32"),
        (packed(group(**INT4 | {"symmetric": False})), "uint4_g32"),
        (packed(group(**INT8)), "int8"),
        (packed(group(**FLOAT8, strategy="channel")), "fp8"),
        (packed(group(**FLOAT8, strategy="block")), "fp8_block"),
        (packed(group(**FLOAT8, group_size=32)), "mxfp8"),
        (packed(group(**FLOAT4, strategy="tensor_group")), "nvfp4"),
        (packed(group(**FLOAT4 | {"group_size": 32})), "mxfp4"),
        (packed(format="nvfp4-pack-quantized"), "nvfp4"),
        (packed(group(["re:.*attn.*"], **FLOAT8), group(**INT4)), "int4_g32"),
        (packed(group(**FLOAT8), group(["re:.*experts.*"], **INT4)), "int4_g32"),
        (packed(group(["re:.*self_attn.*"], **FLOAT8)), "bfloat16"),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, "int4_g64"),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
            "uint4_g128",
        ),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "uint4_g128"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8"),
        (
            {"quant_method": "auto-round", "bits": 4, "group_size": 128}
            | {"data_type": "int"},
            "uint4_g128",
        ),
        (
            {"quant_method": "auto-round", "bits": 4, "group_size": 32}
            | {"data_type": "mx_fp"},
            "mxfp4",
        ),
        (BITS, "nf4"),
        (BITS | {"bnb_4bit_use_double_quant": True}, "nf4_double"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        (FP8, "fp8"),
        (FP8 | {"weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        (quark(dtype="fp8_e4m3", qscheme="per_tensor"), "fp8"),
        (quark(dtype="fp4", qscheme="per_group", group_size=32), "mxfp4"),
    ],
)
def test_each_program_names_the_format_its_own_way(stated, expected):
    model = spec(QWEN3_30B | {"quantization_config": stated})
    assert (model.checkpoint_dtype, model.notes) == (expected, ())


@pytest.mark.parametrize(
    ("pattern", "left_out"),
    [
        ("re:.*experts.*", True),
        ("model.layers.*.mlp", True),
        ("language_model.model.layers.24.mlp.experts*", True),
        ("mlp.experts", True),
        ("model.layers.24*", True),
        ("model.layers.2", False),
        ("model.layers.0*", False),
        ("*.mlp.shared_expert.*", False),
        ("re:.*shared_experts.*", False),
        ("mlp.gate", False),
        ("lm_head", False),
        ("re:[", False),
    ],
)
def test_experts_that_a_list_leaves_out_are_not_quantised(pattern, left_out):
    lists = ({"ignore": [pattern]}, {"modules_to_not_convert": [pattern]})
    for stated in lists:
        model = spec(QWEN3_30B | {"quantization_config": FP8 | stated})
        assert model.checkpoint_dtype == ("bfloat16" if left_out else "fp8")


def test_the_mlp_beside_the_experts_of_gemma_is_another_module():
    stated = {"quant_algo": "NVFP4", "exclude_modules": ["model.layers.24.mlp*"]}
    gemma = QWEN3_30B | {"model_type": "gemma4", "quantization_config": stated}
    assert spec(gemma).checkpoint_dtype == "nvfp4"


def test_a_file_beside_the_config_states_the_format(tmp_path):
    folder = tmp_path / "Qwen3-30B-A3B-NVFP4"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN3_30B))
    stated = {"producer": {}, "quantization": {"quant_algo": "NVFP4"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(stated))
    assert load_model(str(folder)).checkpoint_dtype == "nvfp4"


def test_a_format_without_a_name_here_is_noted_and_not_called_published():
    model = spec(MIXTRAL | {"quantization_config": {"quant_method": "hqq"}})
    note = "weights are published in a format that is not known (hqq)"
    assert (model.checkpoint_dtype, model.notes) == ("bfloat16", (note,))
    assert assumption(model).startswith("experts are taken as bfloat16; --dtype")


@pytest.mark.parametrize(
    ("stated", "dtype", "gpus"),
    [
        ({}, "bfloat16", 2),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4", 1),
        ({"quant_method": "mxfp4"}, "mxfp4", 1),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8", 1),
    ],
)
def test_an_estimate_fits_the_published_format(stated, dtype, gpus):
    """46.7 billion weights: in bfloat16 more than one A100 of 80 GB."""
    model = spec(MIXTRAL | {"quantization_config": stated})
    found = placement_of(model, "a100", "vllm")
    assert (found.dtype, found.tp) == (dtype, gpus)


def test_bytes_of_a_weight_by_hand():
    """Kimi-K2.5: 4 bits, and 16 per 32 weights."""
    sizes = [BYTES_PER_VALUE[name] for name in ("int4_g32", "uint4_g128", "nvfp4")]
    assert sizes == [9 / 16, (4 + 20 / 128) / 8, (16 * 4 + 8) / 16 / 8]


JUNK = st.one_of(st.none(), st.integers(-4, 99), st.text(max_size=3), st.just([3]))
KEYS = ["quant_method", "quant_algo", "config_groups", "ignore", "quantized_layers"]
KEYS += ["bits", "group_size", "global_quant_config", "layer_quant_config"]


@given(st.dictionaries(st.sampled_from(KEYS), JUNK))
def test_no_value_ends_in_a_traceback(stated):
    try:
        spec(MIXTRAL | {"quantization_config": stated})
    except ConfigError as error:
        assert "give a list" in str(error)
