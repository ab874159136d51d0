"""A published `config.json` yields the very spec that we wrote by hand."""

import json
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.config.huggingface import is_huggingface, model_mapping
from evict_profile.config.load import load_model
from evict_profile.config.model import LayerSpec, ModelSpec
from evict_profile.errors import ConfigError
from evict_profile.physics import seen_context
from evict_profile.records import parse, replace

PATH = Path("/models/some-folder/config.json")

# The published values; what has no bearing on the shape is left out.
PUBLISHED: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text())
    for path in sorted(Path(__file__).with_name("published").glob("*.json"))
}
LING_LITE = PUBLISHED.pop("ling-lite")
"""The one of which there is no model file."""
QWEN3_30B, QWEN3_235B = PUBLISHED["qwen3-30b-a3b"], PUBLISHED["qwen3-235b-a22b"]
MIXTRAL, GPT_OSS = PUBLISHED["mixtral-8x7b"], PUBLISHED["gpt-oss-120b"]
DEEPSEEK_V3, LING_FLASH = PUBLISHED["deepseek-v3"], PUBLISHED["ling-flash-2.0"]
ODD_LAYERS = {"decoder_sparse_step": 2, "num_hidden_layers": 5}
SHARED_512 = {"moe_shared_expert_intermediate_size": 512}
FULL = ["full_attention"] * 36
FP8 = {"quant_method": "fp8"}
BLOCKS = FP8 | {"weight_block_size": [128, 128]}
PACKED = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}
# Without these there is no telling the cost, whatever the family.
REQUIRED = ("hidden_size", "num_hidden_layers", "vocab_size", "num_experts_per_tok")
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-4, 99),
    st.text(max_size=3),
    st.lists(st.nothing()),
)


def spec(content):
    return parse(ModelSpec, model_mapping(content, PATH), str(PATH))


def failure(content):
    """The message that mapping ends with; one line that names the file."""
    with pytest.raises(ConfigError) as caught:
        spec(content)
    message = str(caught.value)
    assert message.startswith(f"{PATH}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_yields_the_spec_of_our_file(name):
    ours = load_model(name)
    theirs = spec(PUBLISHED[name])
    named = replace(theirs, name=ours.name, source=ours.source, notes=ours.notes)
    assert named == ours


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "olmoe-1b-7b"])
def test_a_saved_config_may_rename_the_count_of_experts(name):
    """transformers 5 does, to what Mixtral calls it."""
    saved = dict(PUBLISHED[name])
    saved["num_local_experts"] = saved.pop("num_experts")
    assert spec(saved) == spec(PUBLISHED[name])


def test_a_file_of_theirs_is_known_by_either_key():
    assert not is_huggingface({"name": "tiny", "hidden_size": 512})
    assert is_huggingface({"model_type": "mixtral"})
    assert is_huggingface({"architectures": ["MixtralForCausalLM"]})


@pytest.mark.parametrize(
    ("content", "field", "expected"),
    [
        (QWEN3_235B | {"head_dim": None}, "attention.head_dim", 4096 // 64),
        (QWEN3_30B | {"mlp_only_layers": [1, 0]}, "dense_layers", 2),
        (QWEN3_30B | {"mlp_only_layers": [1, 0]}, "dense_width", 6144),
        (QWEN3_30B | {"mlp_only_layers": [5]}, "dense_layers", 1),
        (QWEN3_30B | {"decoder_sparse_step": 2}, "dense_layers", 24),
        (QWEN3_30B | ODD_LAYERS, "dense_layers", 3),
        (MIXTRAL | {"sliding_window": 4096}, "attention.sliding_window", 4096),
        (MIXTRAL | {"sliding_window": 4096}, "attention.sliding_every", 1),
        (GPT_OSS | {"layer_types": None}, "attention.sliding_window", 128),
        (GPT_OSS | {"layer_types": None}, "attention.sliding_every", 2),
        (GPT_OSS | {"layer_types": FULL}, "attention.sliding_window", 0),
        (DEEPSEEK_V3 | {"n_shared_experts": 2}, "moe.shared_width", 2 * 2048),
        (DEEPSEEK_V3 | {"moe_layer_freq": 2}, "dense_layers", 32),
        (DEEPSEEK_V3 | {"qk_nope_head_dim": 192}, "attention.qk_head_dim", 192),
        (LING_LITE, "moe.router", "softmax"),
        (LING_LITE, "moe.groups", 1),
        (LING_LITE, "moe.shared_width", 2 * 1408),
        (LING_FLASH | SHARED_512, "moe.shared_width", 512),
        (LING_FLASH | {"model_type": "bailing_moe_v2"}, "moe.router", "sigmoid"),
        (MIXTRAL | {"torch_dtype": "float16"}, "dtype", "bfloat16"),
        (MIXTRAL | {"torch_dtype": "float32"}, "dtype", "float32"),
        (MIXTRAL | {"torch_dtype": None, "dtype": "torch.float32"}, "dtype", "float32"),
        (MIXTRAL | {"torch_dtype": None}, "dtype", "bfloat16"),
        (MIXTRAL, "checkpoint_dtype", "bfloat16"),
        (MIXTRAL | {"quantization_config": FP8}, "checkpoint_dtype", "fp8"),
        (MIXTRAL | {"quantization_config": BLOCKS}, "checkpoint_dtype", "fp8_block"),
        (MIXTRAL | {"quantization_config": PACKED}, "checkpoint_dtype", "mxfp4"),
        (
            MIXTRAL | {"quantization_config": BLOCKS, "expert_dtype": "fp4"},
            "checkpoint_dtype",
            "mxfp4",
        ),
        (QWEN3_30B | {"_name_or_path": "Qwen/Qwen3-30B"}, "name", "some-folder"),
        (MIXTRAL, "name", "some-folder"),
    ],
)
def test_each_family_is_read_its_own_way(content, field, expected):
    assert attrgetter(field)(spec(content)) == expected


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (QWEN3_30B | {"mlp_only_layers": 3}, "mlp_only_layers is 3; give a list"),
        (QWEN3_30B | {"use_sliding_window": True}, "use_sliding_window"),
        (GPT_OSS | {"layer_types": ["odd_attention"] * 36}, "layer_types has 'odd'"),
        (
            {"model_type": "llama", "hidden_size": 4096},
            "'llama' has no key that names experts",
        ),
        ({"model_type": "grok", "num_local_experts": 8}, "'grok' is unknown, and key"),
        (
            {"model_type": "qwen3_vl_moe", "text_config": {"num_experts": 128}},
            "key 'num_hidden_layers' is missing; add it as the published",
        ),
        (
            {"architectures": ["LlamaForCausalLM"]},
            "'model_type' is missing; add it, it",
        ),
    ],
)
def test_what_a_shape_cannot_say_is_refused(content, sentence):
    assert sentence in failure(content)


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (QWEN3_30B | {"mlp_only_layers": [5]}, "lie between"),
        (DEEPSEEK_V3 | {"quantization_config": {"quant_method": "odd"}}, "known (odd)"),
    ],
)
def test_reservations_are_noted(content, note):
    assert note in spec(content).notes[0]


def test_windows_that_recur_unevenly_are_layers_of_another_kind():
    kinds = ["full_attention", "sliding_attention"] * 18
    model = spec(GPT_OSS | {"layer_types": kinds})
    own = model.attention.weights(model.hidden_size)
    assert model.other_layers == (LayerSpec("sliding", 18, own, 128),)
    assert seen_context(model, 1024) == (128 + 1024) / 2
    assert "18 sliding" in model.caveats(None)[0]


def test_a_multimodal_config_is_read_as_its_language_model():
    outer = {"model_type": "some_vl", "text_config": QWEN3_30B, "vision_config": {}}
    assert spec(outer) == spec(QWEN3_30B)


def test_an_unknown_family_is_read_by_the_usual_keys_with_a_caveat():
    model = spec(QWEN3_30B | {"model_type": "brand_new", "use_qk_norm": True})
    known = spec(QWEN3_30B)
    assert model.notes == ("model_type 'brand_new' is unknown, read by the usual keys",)
    assert replace(model, notes=()) == known


@pytest.mark.parametrize(
    "stated",
    [{"expert_layer_period": 2}, {"moe_hidden_size": 64}, {"global_every_k": [1]}],
)
def test_an_unknown_family_is_refused_where_a_key_of_its_shape_is_not_read(stated):
    message = failure(QWEN3_30B | {"model_type": "brand_new"} | stated)
    assert f"'brand_new' is unknown, and key '{next(iter(stated))}' is not" in message
    assert "add its row to configs/families.yaml" in message


@pytest.mark.parametrize(
    "harmless",
    [
        {"moe_router_dtype": "float32"},
        {"moe_aux_loss_coef": 0.1},
        {"moe_layer_freq": 1},
    ],
)
def test_an_unknown_family_may_say_how_its_experts_are_trained(harmless):
    assert spec(QWEN3_30B | {"model_type": "brand_new"} | harmless).notes


def test_a_missing_key_of_an_unknown_family_is_not_asked_for():
    content = {k: v for k, v in MIXTRAL.items() if k != "intermediate_size"}
    message = failure(content | {"model_type": "brand_new"})
    assert "'brand_new' is unknown, and key 'moe_intermediate_size'" in message
    assert "published" not in message


@pytest.mark.parametrize(
    "nested",
    [
        {"ffn_config": {"moe_num_experts": 16}},
        {"some_config": {"text_config": {"num_experts": 128}}},
    ],
)
def test_a_model_is_dense_only_where_no_key_names_experts(nested):
    message = failure({"model_type": "brand_new", "hidden_size": 8} | nested)
    assert "dense" not in message
    assert "experts' is not read; add its row" in message


def test_a_row_may_say_why_its_family_is_not_read():
    message = failure(QWEN3_30B | {"model_type": "axk2"})
    assert "'axk2' is not read: no key states its query gate" in message


def test_the_outermost_config_says_whether_embeddings_are_tied():
    inner = QWEN3_30B | {"tie_word_embeddings": True}
    outer = {"model_type": "some_vl", "text_config": inner}
    assert spec(outer).tied_embeddings
    assert not spec(outer | {"tie_word_embeddings": False}).tied_embeddings


def test_the_thinker_of_an_omni_model_is_its_language_model():
    thinker = {"text_config": QWEN3_30B, "audio_config": {}}
    assert spec({"model_type": "omni", "thinker_config": thinker}) == spec(QWEN3_30B)


def test_every_layer_but_each_nth_may_attend_to_a_window():
    each = {"global_attn_every_n_layers": 4, "sliding_window": 128}
    windowed = spec(QWEN3_30B | each).other_layers
    assert [(other.kind, other.layers) for other in windowed] == [("sliding", 36)]


def test_sizes_that_are_listed_by_layer_must_be_equal():
    """Hunyuan's config has them so."""
    each = {"moe_intermediate_size": [768] * 48}
    assert spec(QWEN3_30B | each) == spec(QWEN3_30B)
    each["moe_intermediate_size"][7] = 512
    assert "give a whole number" in failure(QWEN3_30B | each)


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_named(name, key):
    content = {k: v for k, v in PUBLISHED[name].items() if k != key}
    assert f"key '{key}' is missing; add it" in failure(content)


@pytest.mark.parametrize("value", [0, -8, 2.5, "eight", True, [8]])
def test_a_count_that_is_no_whole_number_is_named(value):
    message = failure(MIXTRAL | {"num_experts_per_tok": value})
    assert f"num_experts_per_tok is {value!r}; give a whole number" in message


@given(st.sampled_from(sorted(PUBLISHED)), st.data())
def test_no_value_of_any_key_ends_in_a_traceback(name, data):
    key = data.draw(st.sampled_from(sorted(PUBLISHED[name])))
    try:
        model = spec(PUBLISHED[name] | {key: data.draw(JUNK)})
    except ConfigError as error:
        assert str(error).startswith(f"{PATH}: ")
    else:
        assert 0 < model.moe.top_k <= model.moe.num_experts
