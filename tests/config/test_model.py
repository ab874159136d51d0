"""Model files load, agree with what was published, and fail in one sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.config.model import known_models, load_model
from evict_profile.physics import common_weights, non_moe_weights
from tests.config.files import example, failure

# Billions of parameters, in total (checkpoint or paper) and active (model card).
PUBLISHED = {
    "qwen3-30b-a3b": (30.53, 3.3),
    "qwen3-235b-a22b": (235.09, 22.0),
    "olmoe-1b-7b": (6.919, 1.3),
    "mixtral-8x7b": (46.70, 12.9),
    "deepseek-v3": (671.0, 37.0),
    "gpt-oss-120b": (116.83, 5.13),
    "ling-flash-2.0": (102.89, 6.1),
    "gpt-oss-20b": (20.91, 3.61),
    "qwen3-coder-480b-a35b": (480.0, 35.0),
    "minimax-m2.5": (230.0, 10.0),
    "kimi-k2": (1040.0, 32.6),
}
# Published to two or three digits.
ROUNDED = {"minimax-m2.5": 0.05, "kimi-k2": 0.015}
# OpenAI counts the output head as active, not the input embedding.
WITHOUT_EMBEDDING = {"gpt-oss-120b", "gpt-oss-20b", "minimax-m2.5"}
NAMES = [path.stem for path in known_models()]
SPECS = [load_model(name) for name in NAMES]


def parameters(model, experts):
    """Parameters with `experts` a layer, all but norms and biases, in and out."""
    expert = 3 * model.hidden_size * model.moe.expert_width
    layers = model.moe_layers * (common_weights(model) + experts * expert)
    return layers + non_moe_weights(model) + model.vocab_size * model.hidden_size


@pytest.fixture
def content():
    """A model file that loads, for the test to break in one place."""
    return example("models")


def test_every_published_model_has_its_counts_checked():
    assert set(NAMES) == PUBLISHED.keys() | {"tiny", "tiny-qwen3"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_shape_implies_the_published_total(name):
    model = load_model(name)
    total = parameters(model, model.moe.num_experts) / 1e9
    assert total == pytest.approx(PUBLISHED[name][0], rel=ROUNDED.get(name, 1e-3))


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_shape_implies_the_published_active_count(name):
    model = load_model(name)
    active = parameters(model, model.moe.top_k)
    if name in WITHOUT_EMBEDDING:
        active -= model.vocab_size * model.hidden_size
    assert active / 1e9 == pytest.approx(
        PUBLISHED[name][1], rel=ROUNDED.get(name, 0.02)
    )


def test_mla_caches_one_latent_for_all_heads():
    assert load_model("deepseek-v3").attention.cache_values_per_token == 512 + 64


def test_gqa_caches_a_key_and_a_value_for_each_kv_head():
    attention = load_model("qwen3-30b-a3b").attention
    assert attention.cache_values_per_token == 2 * 4 * 128


def test_bytes_of_an_expert_count_three_projections():
    assert load_model("mixtral-8x7b").bytes_per_expert == 3 * 4096 * 14336 * 2


@given(model=st.sampled_from(SPECS), tokens=st.integers(1, 10_000))
def test_the_uniform_union_lies_between_its_bounds(model, tokens):
    union = model.uniform_union(tokens)
    assert model.smallest_union() <= union * (1 + 1e-9)
    assert union <= model.largest_union(tokens) * (1 + 1e-9)


def test_an_unknown_nested_key_is_named(tmp_path, content):
    content["moe"]["topk"] = 8
    assert "unknown key 'moe.topk'" in failure("models", tmp_path, content)


def test_an_unknown_router_is_answered_with_the_known_ones(tmp_path, content):
    content["moe"]["router"] = "hash"
    message = failure("models", tmp_path, content)
    assert all(word in message for word in ("moe.router", "softmax", "sigmoid"))


@pytest.mark.parametrize(
    ("section", "change", "fields"),
    [
        ("moe", {"top_k": 257}, ["top_k 257", "num_experts 256"]),
        ("moe", {"num_experts": 250}, ["num_experts 250", "groups 8"]),
        ("moe", {"groups_kept": 9}, ["groups_kept 9", "groups 8"]),
        ("moe", {"groups": 256}, ["groups_kept 4", "top_k 8"]),
        ("moe", {"expert_width": 0}, ["moe.expert_width: Expected `int` >= 1 (got 0)"]),
        ("attention", {"num_kv_heads": 5}, ["num_heads 32", "num_kv_heads 5"]),
        ("attention", {"kind": "mla"}, ["mla needs q_lora_rank"]),
    ],
)
def test_an_impossible_section_names_the_fields_in_conflict(
    tmp_path, content, section, change, fields
):
    content[section].update(change)
    message = failure("models", tmp_path, content)
    assert all(field in message for field in fields)


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"dense_layers": 32}, ["dense_layers 32", "num_layers 32"]),
        ({"dense_width": 0}, ["dense_width", "dense_layers"]),
        ({"hidden_size": -1}, ["hidden_size: Expected `int` >= 1 (got -1)"]),
    ],
)
def test_an_impossible_model_names_the_fields_in_conflict(
    tmp_path, content, change, fields
):
    message = failure("models", tmp_path, content | change)
    assert all(field in message for field in fields)
