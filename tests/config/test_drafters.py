"""A head that drafts is no target, whatever its config states besides."""

import json
from pathlib import Path

import pytest

from evict_profile.config import load_model
from evict_profile.config.drafters import check_is_target
from evict_profile.errors import ConfigError

PUBLISHED = sorted(Path(__file__).with_name("published").glob("*.json"))
LLAMA_HEAD = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 1,
    "vocab_size": 151936,
    "draft_vocab_size": 32000,
}


@pytest.mark.parametrize(
    "content",
    [
        LLAMA_HEAD,
        {"model_type": "llama", "draft_vocab_size": 32000},
        {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2"},
        {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3"},
        {"architectures": ["DFlashDraftModel"], "model_type": "qwen3"},
        {"architectures": ["DeepseekV3ForCausalLMNextN"], "model_type": "deepseek_v3"},
        {"architectures": ["Qwen3NextForCausalLMMTP"], "model_type": "qwen3_next"},
        {"model_type": "medusa", "medusa_num_heads": 5},
        {"architectures": ["LlamaForCausalLM"], "model_type": "eagle"},
        {"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3"},
        {"model_type": "qwen3_5_mtp", "text_config": {"num_experts": 8}},
        {
            "architectures": ["Gemma4AssistantForCausalLM"],
            "model_type": "gemma4_assistant",
        },
    ],
)
def test_a_head_is_refused_with_what_to_give_instead(content, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"head that drafts .* that it drafts for$"):
        load_model(str(path))


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_a_target_with_a_head_of_its_own_is_none(path):
    check_is_target(json.loads(path.read_text()), path)


def test_an_architecture_that_is_no_list_is_left_to_the_reader():
    check_is_target({"architectures": None, "model_type": "mixtral"}, Path("c.json"))
