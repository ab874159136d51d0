"""Reads a model's shape from the `config.json` that Hugging Face publishes with it.

Each family names the same quantities differently (`num_experts`, `num_local_experts`,
`n_routed_experts`); `FAMILIES` says how each field of `ModelSpec` is read. What
`ModelSpec` cannot express, such as a dense layer between two with experts, is refused:
a wrong shape would be measured without complaint.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evict_profile.errors import ConfigError

SAVED_EXPERTS = "num_local_experts"
"""What transformers 5 saves the number of experts as, whatever its name was."""

_EXPERT_COUNTS = ("num_experts", "n_routed_experts", SAVED_EXPERTS)
_USE_YAML = "write the shape as a YAML file, as configs/models/qwen3-30b-a3b.yaml does"


@dataclass(frozen=True)
class _Config:
    """A `config.json` whose missing and impossible values become one sentence."""

    content: dict[str, Any]
    path: Path

    def count(self, key: str, default: int | None = None, at_least: int = 1) -> int:
        """A whole number; null counts as missing, as Hugging Face has it."""
        value = self.content.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.missing(key)
        if type(value) is not int or value < at_least:
            need = f"give a whole number of at least {at_least}"
            raise self.error(f"{key} is {value!r}; {need}")
        return value

    def listed(self, key: str) -> list[Any]:
        """A list; missing and null are the empty list."""
        value = self.content.get(key)
        if value is not None and not isinstance(value, list):
            raise self.error(f"{key} is {value!r}; give a list")
        return value or []

    def error(self, reason: str) -> ConfigError:
        return ConfigError(f"{self.path}: {reason}")

    def missing(self, key: str) -> ConfigError:
        fix = "add it as the published config.json has it"
        return self.error(f"key '{key}' is missing; {fix}")


Rule = str | Callable[[_Config], Any]
"""How a field is read: the key of a whole number that must be there, or a function."""


def is_huggingface(content: dict[str, Any]) -> bool:
    """Whether a mapping is a Hugging Face `config.json`, not a model file of ours."""
    return "model_type" in content or "architectures" in content


def model_mapping(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Translate a `config.json` into the mapping that `ModelSpec` takes.

    Args:
        content: the file's content.
        path: where it lies; named in errors and as the `source`.
    """
    family = _family(_Config(content, path))
    saved = dict.fromkeys(_EXPERT_COUNTS, content.get(SAVED_EXPERTS))
    config = _Config(saved | content, path)
    mapping: dict[str, Any] = {"": {}, "attention": {}, "moe": {}}
    for field, rule in (COMMON | family).items():
        section, _, name = field.rpartition(".")
        value = config.count(rule) if isinstance(rule, str) else rule(config)
        mapping[section] |= value if name == "*" else {name: value}
    return {**mapping.pop(""), **mapping}


def _family(config: _Config) -> dict[str, Rule]:
    model_type = config.content.get("model_type")
    if not model_type:
        raise config.missing("model_type")
    # Version 2 of Ling may state the type of version 1.
    second = "v2" in str(config.content.get("architectures")).lower()
    name = "bailing_moe_v2" if model_type == "bailing_moe" and second else model_type
    if str(name) in FAMILIES:
        return FAMILIES[str(name)]
    if _has_experts(config.content):
        types = ", ".join(sorted(FAMILIES))
        raise config.error(
            f"model_type '{model_type}' is not one of {types}; {_USE_YAML}"
        )
    raise config.error(
        f"model_type '{model_type}' is a dense model without experts; give the "
        "config.json of a mixture-of-experts model"
    )


def _has_experts(content: dict[str, Any]) -> bool:
    """Whether any level counts experts; multimodal models nest the language model."""
    nested = (value for value in content.values() if isinstance(value, dict))
    return not content.keys().isdisjoint(_EXPERT_COUNTS) or any(
        map(_has_experts, nested)
    )


def _name(config: _Config) -> str:
    """Last part of `_name_or_path`, else the folder's name.

    In lower case and without the owner, so that it reads like the names in
    `configs/models/` and can be part of a file name.
    """
    published = Path(str(config.content.get("_name_or_path") or "")).name
    return (published or config.path.resolve().parent.name).lower()


def _dtype(config: _Config) -> str:
    """bfloat16 unless float32: a latency of float16 is that of bfloat16."""
    given = config.content.get("dtype") or config.content.get("torch_dtype")
    name = str(given).removeprefix("torch.")
    return "float32" if name == "float32" else "bfloat16"


def _head_dim(config: _Config) -> int:
    split = config.count("hidden_size") // config.count("num_attention_heads")
    return config.count("head_dim", split)


def _latent_head_dim(config: _Config) -> int:
    value = config.count("v_head_dim")
    if config.count("qk_nope_head_dim") != value:
        fix = "ModelSpec has one head_dim for both, so choose another model"
        raise config.error(f"qk_nope_head_dim differs from v_head_dim; {fix}")
    return value


def _no_window(config: _Config) -> dict[str, int]:
    if config.content.get("use_sliding_window"):
        raise config.error(f"use_sliding_window is not supported; {_USE_YAML}")
    return {}


def _window_everywhere(config: _Config) -> dict[str, int]:
    window = config.count("sliding_window", 0, at_least=0)
    return {"sliding_window": window, "sliding_every": 1} if window else {}


def _alternating_window(config: _Config) -> dict[str, int]:
    """Which layers slide; without `layer_types` every second does, from the first."""
    layers = config.count("num_hidden_layers")
    kinds = config.listed("layer_types") or ["sliding_attention", ""] * layers
    sliding = [n for n, kind in enumerate(kinds[:layers]) if "sliding" in str(kind)]
    if not sliding:
        return {}
    every = sliding[1] - sliding[0] if len(sliding) > 1 else layers
    if sliding != list(range(0, layers, every)):
        fix = "sliding layers must recur evenly from the first, so choose another model"
        raise config.error(f"layer_types has an uneven pattern; {fix}")
    return {"sliding_window": config.count("sliding_window"), "sliding_every": every}


def _first_dense(config: _Config) -> dict[str, int]:
    if config.count("moe_layer_freq", 1) != 1:
        fix = "only models with experts in every layer after the dense ones are known"
        raise config.error(f"moe_layer_freq must be 1; {fix}")
    return _dense(config, config.count("first_k_dense_replace", 0, at_least=0))


def _listed_dense(config: _Config) -> dict[str, int]:
    """Layers kept dense, by list or by stride; only leading ones can be expressed."""
    step = config.count("decoder_sparse_step", 1)
    kept = config.listed("mlp_only_layers")
    layers = range(config.count("num_hidden_layers"))
    dense = [layer for layer in layers if layer in kept or (layer + 1) % step]
    if dense != list(range(len(dense))):
        keys = "mlp_only_layers or decoder_sparse_step"
        fix = "only leading layers can be dense, so choose another model"
        raise config.error(f"{keys} puts a dense layer after one with experts; {fix}")
    return _dense(config, len(dense))


def _dense(config: _Config, layers: int) -> dict[str, int]:
    """A config may state a width also where no layer is dense."""
    width = config.count("intermediate_size") if layers else 0
    return {"dense_layers": layers, "dense_width": width}


def _shared(number: str, width: str) -> Rule:
    """Summed width of the shared experts, each that of a routed one if not stated."""
    return lambda config: (
        config.count(number, 0, at_least=0)
        * config.count(width, config.count("moe_intermediate_size"))
    )


def _word(key: str, default: str) -> Rule:
    return lambda config: config.content.get(key) or default


COMMON: dict[str, Rule] = {
    "name": _name,
    "source": lambda config: str(config.path),
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "vocab_size": "vocab_size",
    "dtype": _dtype,
    "attention.num_heads": "num_attention_heads",
    "attention.num_kv_heads": "num_key_value_heads",
    "attention.head_dim": _head_dim,
    "attention.qk_norm": lambda config: bool(config.content.get("use_qk_norm")),
    "moe.top_k": "num_experts_per_tok",
}
"""How most families name the fields of `ModelSpec`; "*" stands for several."""

_QK_NORM: dict[str, Rule] = {
    "attention.qk_norm": lambda config: bool(config.content.get("use_qk_norm", True))
}
_GROUPS: dict[str, Rule] = {"moe.groups": "n_group", "moe.groups_kept": "topk_group"}
_LING: dict[str, Rule] = {
    "*": _first_dense,
    "moe.num_experts": "num_experts",
    "moe.expert_width": "moe_intermediate_size",
    "moe.shared_width": _shared(
        "num_shared_experts", "moe_shared_expert_intermediate_size"
    ),
    "moe.router": _word("score_function", "softmax"),
}
_MIXTRAL: dict[str, Rule] = {
    "moe.num_experts": "num_local_experts",
    "moe.expert_width": "intermediate_size",
}
FAMILIES: dict[str, dict[str, Rule]] = {
    "bailing_moe": _LING,
    "bailing_moe_v2": {
        **_LING,
        **_GROUPS,
        **_QK_NORM,
        "moe.router": _word("score_function", "sigmoid"),
    },
    "deepseek_v3": {
        **_GROUPS,
        "*": _first_dense,
        "moe.num_experts": "n_routed_experts",
        "moe.expert_width": "moe_intermediate_size",
        "moe.shared_width": _shared("n_shared_experts", "moe_intermediate_size"),
        "moe.router": _word("scoring_func", "sigmoid"),
        # Multi-head latent attention: every head reads the one latent.
        "attention.kind": lambda config: "mla",
        "attention.num_kv_heads": "num_attention_heads",
        "attention.head_dim": _latent_head_dim,
        "attention.q_lora_rank": "q_lora_rank",
        "attention.kv_lora_rank": "kv_lora_rank",
        "attention.qk_rope_dim": "qk_rope_head_dim",
    },
    "gpt_oss": {**_MIXTRAL, "attention.*": _alternating_window},
    "mixtral": {**_MIXTRAL, "attention.*": _window_everywhere},
    "olmoe": {
        **_QK_NORM,
        "moe.num_experts": "num_experts",
        "moe.expert_width": "intermediate_size",
    },
    "qwen3_moe": {
        **_QK_NORM,
        "*": _listed_dense,
        "moe.num_experts": "num_experts",
        "moe.expert_width": "moe_intermediate_size",
        "attention.*": _no_window,
    },
}
