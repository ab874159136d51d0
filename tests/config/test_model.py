"""Model files load, agree with what was published, and fail in one sentence."""

from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.config.load import known_models, load_model
from evict_profile.errors import ConfigError
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
    "deepseek-v3.2": (671.0, 37.0),
    "deepseek-v4-flash": (284.0, 13.0),
    "deepseek-v4-pro": (1600.0, 49.0),
    "gemma-4-26b-a4b": (25.2, 3.8),
    "glm-4.5": (355.0, 32.0),
    "glm-4.5-air": (106.0, 12.0),
    "glm-4.7-flash": (30.0, None),
    "glm-5": (744.0, 40.0),
    "hunyuan-a13b": (80.0, 13.0),
    "hy3-preview": (295.0, 21.0),
    "kimi-k3": (2800.0, 104.0),
    "kimi-linear-48b-a3b": (48.0, None),
    "llama-4-maverick-17b-128e-instruct": (400.0, 17.0),
    "llama-4-scout-17b-16e-instruct": (109.0, 17.0),
    "mimo-v2-flash": (309.0, 15.0),
    "minimax-m3": (428.0, 23.0),
    "mixtral-8x22b": (141.0, 39.0),
    "nvidia-nemotron-3-nano-30b-a3b": (31.6, 3.6),
    "nvidia-nemotron-3-super-120b-a12b": (120.6, 12.7),
    "nvidia-nemotron-3-ultra-550b-a55b": (550.0, 55.0),
    "qwen1.5-moe-a2.7b": (14.3, 2.7),
    "qwen3-next-80b-a3b": (80.0, None),
    "qwen3.5-122b-a10b": (122.0, 10.0),
    "qwen3.5-35b-a3b": (35.0, None),
    "qwen3.5-397b-a17b": (397.0, 17.0),
    "step-3.7-flash": (196.0, 11.0),
    "ernie-4.5-21b-a3b": (None, None),
}
# Of those with a file of shapes; published to two or three digits, where not 0.02.
ROUNDED = {"minimax-m2.5": 0.05, "kimi-k2": 0.015}
EXACT = ("qwen3-30b-a3b", "qwen3-235b-a22b", "olmoe-1b-7b", "mixtral-8x7b")
EXACT += ("qwen3-coder-480b-a35b",)
EXACT += ("deepseek-v3", "gpt-oss-120b", "gpt-oss-20b", "ling-flash-2.0")
# Some count the output head as active, not the input embedding, some neither.
WITHOUT_EMBEDDING = {"gpt-oss-120b": 1, "gpt-oss-20b": 1, "minimax-m2.5": 1}
WITHOUT_EMBEDDING |= {"deepseek-v3.2": 1, "glm-4.5": 2, "glm-4.5-air": 2, "glm-5": 1}
WITHOUT_EMBEDDING |= {"deepseek-v4-flash": 1}
WITHOUT_EMBEDDING |= {"mimo-v2-flash": 1, "minimax-m3": 2}
NAMES = [path.stem for path in known_models()]
SPECS = [load_model(name) for name in NAMES]


def test_every_published_model_has_its_counts_checked():
    assert set(NAMES) == PUBLISHED.keys() | {"tiny", "tiny-qwen3"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_shape_implies_the_published_counts(name):
    model = load_model(name)
    total, active = PUBLISHED[name]
    if total is None:
        pytest.skip(f"{name}: published by its name alone, which rounds down")
    rel = 1e-3 if name in EXACT else ROUNDED.get(name, 0.03)
    found = model.total_parameters / 1e9
    assert found == pytest.approx(total, rel=rel)
    if active is None:
        pytest.skip(f"{name}: active parameters are published to one digit")
    rel = 0.02 if name in EXACT else 0.03
    embedding = model.vocab_size * model.hidden_size * WITHOUT_EMBEDDING.get(name, 0)
    found = (model.active_parameters - embedding) / 1e9
    assert found == pytest.approx(active, rel=ROUNDED.get(name, rel))


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("zai-org/GLM-4.5-Air-FP8", "glm-4.5-air"),
        ("zai-org/GLM-4.7", "glm-4.5"),
        ("zai-org/GLM-4.7-Flash", "glm-4.7-flash"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-v3"),
        (
            "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            "nvidia-nemotron-3-nano-30b-a3b",
        ),
    ],
)
def test_a_model_is_found_by_its_name_on_hugging_face(name, file):
    assert load_model(name) == load_model(file)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "; nearest: deepseek-r1"),
        ("x/y", ""),
        ("zai-org/GLM-5.3-Flash", "; nearest: .*glm-5.3"),
        ("Kimi-K2-Thinking-Mini", "; nearest: kimi-k2"),
        ("DeepSeek-V3.2-Exp-Lite", "; nearest: deepseek-v3.2-exp"),
        ("Qwen3-30B-A3B-Distill", "; nearest: qwen3-30b-a3b"),
    ],
)
def test_another_model_of_a_similar_name_is_not_taken(name, near):
    with pytest.raises(ConfigError, match=f"and none of that name.*{near}"):
        load_model(name)


@pytest.mark.parametrize(
    ("name", "field", "expected"),
    [
        ("deepseek-v3", "attention.cache_values_per_token", 512 + 64),
        ("qwen3-30b-a3b", "attention.cache_values_per_token", 2 * 4 * 128),
        ("mixtral-8x7b", "bytes_per_expert", 3 * 4096 * 14336 * 2),
    ],
)
def test_sizes_by_hand(name, field, expected):
    assert attrgetter(field)(load_model(name)) == expected


@given(model=st.sampled_from(SPECS), tokens=st.integers(1, 10_000))
def test_the_uniform_union_lies_between_its_bounds(model, tokens):
    union = model.uniform_union(tokens)
    assert model.smallest_union() <= union * (1 + 1e-9)
    assert union <= model.largest_union(tokens) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("section", "change", "fields"),
    [
        ("moe", {"topk": 8}, ["unknown key 'moe.topk'"]),
        ("moe", {"router": "hash"}, ["moe.router", "softmax", "sigmoid"]),
        ("moe", {"top_k": 257}, ["top_k 257", "num_experts 256"]),
        ("moe", {"num_experts": 250}, ["num_experts 250", "groups 8"]),
        ("moe", {"groups_kept": 9}, ["groups_kept 9", "groups 8"]),
        ("moe", {"groups": 256}, ["groups_kept 4", "top_k 8"]),
        ("moe", {"expert_width": 0}, ["moe.expert_width: Expected `int` >= 1 (got 0)"]),
        ("attention", {"num_kv_heads": 5}, ["num_heads 32", "num_kv_heads 5"]),
        ("attention", {"kind": "mla"}, ["mla needs kv_lora_rank"]),
        ("", {"dense_layers": 32}, ["dense_layers 32", "num_layers 32"]),
        ("", {"dense_width": 0}, ["dense_width", "dense_layers"]),
        ("", {"hidden_size": -1}, ["hidden_size: Expected `int` >= 1 (got -1)"]),
    ],
)
def test_an_impossible_model_names_the_fields(tmp_path, section, change, fields):
    content = example("models")
    (content[section] if section else content).update(change)
    message = failure("models", tmp_path, content)
    assert all(field in message for field in fields)


def test_layers_are_said_to_lack_kernels_only_where_they_do():
    model = load_model("qwen3-next-80b-a3b")
    rollback = "a recurrent state is rolled back at a cost that is not in them"
    assert model.caveats(()) == (rollback,)
    assert model.caveats(None) == model.caveats({"linear"})
    assert model.caveats(None)[0].startswith("of 48 layers 36 linear are costed by")


def test_layers_of_deepseek_v4_are_of_three_kinds():
    model = load_model("deepseek-v4-flash")
    kinds = {other.kind: other.layers for other in model.other_layers}
    assert kinds == {"csa": 21, "hca": 20, "sliding": 2}
    assert (model.full_layers, model.residual_streams) == (0, 4)


@pytest.mark.parametrize(
    ("name", "rule", "heads"),
    [
        ("qwen3-next-80b-a3b", "gated_delta", 32),
        ("kimi-k3", "kda", 96),
        ("nvidia-nemotron-3-nano-30b-a3b", "", 32),
    ],
)
def test_a_recurrent_layer_keeps_a_state(name, rule, heads):
    """In heads of 128 x 128 values; Nemotron's 64 heads are 64 x 128."""
    recurrent = next(other for other in load_model(name).other_layers if other.state)
    assert (recurrent.rule, recurrent.state) == (rule, heads * 128 * 128)
