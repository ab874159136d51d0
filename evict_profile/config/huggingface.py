"""Reads a model's shape from the `config.json` that Hugging Face publishes with it.

Each family names the same quantities differently (`num_experts`,
`num_local_experts`, `n_routed_experts`), so each has one small function here. What
`ModelSpec` cannot express, such as a dense layer between two with experts, is
refused: a wrong shape would be measured without complaint.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evict_profile.errors import ConfigError

SAVED_EXPERTS = "num_local_experts"
_EXPERT_COUNTS = {"num_experts", "num_local_experts", "n_routed_experts"}
_USE_YAML = "write the shape as a YAML file, as configs/models/qwen3-30b-a3b.yaml does"


def is_huggingface(content: dict[str, Any]) -> bool:
    """Whether a mapping is a Hugging Face `config.json`, not a model file of ours."""
    return "model_type" in content or "architectures" in content


def model_mapping(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Translate a `config.json` into the mapping that `ModelSpec` takes.

    Args:
        content: the file's content.
        path: where it lies; named in errors and as the `source`.

    Raises:
        ConfigError: dense or unknown model type, a missing key, or a shape that
            `ModelSpec` cannot express.
    """
    config = _Config(content, path)
    family = _FAMILIES.get(config.model_type)
    if family is None:
        raise config.unsupported()
    return _common(config) | family(config)


@dataclass(frozen=True)
class _Config:
    """A `config.json` whose missing and impossible values become one sentence."""

    content: dict[str, Any]
    path: Path

    @property
    def model_type(self) -> str:
        if not self.content.get("model_type"):
            raise self.missing("model_type")
        return str(self.content["model_type"])

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

    def unsupported(self) -> ConfigError:
        known = f"model_type '{self.model_type}'"
        if _has_experts(self.content):
            types = ", ".join(sorted(_FAMILIES))
            return self.error(f"{known} is not one of {types}; {_USE_YAML}")
        fix = "give the config.json of a mixture-of-experts model"
        return self.error(f"{known} is a dense model without experts; {fix}")


def _has_experts(content: dict[str, Any]) -> bool:
    """Whether any level counts experts; multimodal models nest the language model."""
    nested = (value for value in content.values() if isinstance(value, dict))
    return not _EXPERT_COUNTS.isdisjoint(content) or any(map(_has_experts, nested))


def _common(config: _Config) -> dict[str, Any]:
    """What every family names alike."""
    return {
        "name": _name(config),
        "source": str(config.path),
        "hidden_size": config.count("hidden_size"),
        "num_layers": config.count("num_hidden_layers"),
        "vocab_size": config.count("vocab_size"),
        "dtype": _dtype(config.content),
    }


def _name(config: _Config) -> str:
    """Last part of `_name_or_path`, else the folder's name.

    In lower case and without the owner, so that it reads like the names in
    `configs/models/` and can be part of a file name.
    """
    published = Path(str(config.content.get("_name_or_path") or "")).name
    return (published or config.path.resolve().parent.name).lower()


def _dtype(content: dict[str, Any]) -> str:
    """bfloat16 unless float32: a latency of float16 is that of bfloat16."""
    given = content.get("dtype") or content.get("torch_dtype")
    name = str(given).removeprefix("torch.")
    return "float32" if name == "float32" else "bfloat16"


def _gqa(config: _Config, **extra: int) -> dict[str, Any]:
    """Grouped-query attention."""
    heads = config.count("num_attention_heads")
    return {
        "num_heads": heads,
        "num_kv_heads": config.count("num_key_value_heads"),
        "head_dim": config.count("head_dim", config.count("hidden_size") // heads),
        **extra,
    }


def _dense(config: _Config, layers: int) -> dict[str, int]:
    """The leading layers without experts; a config may state a width for none."""
    if not layers:
        return {}
    width = config.count("intermediate_size")
    return {"dense_layers": layers, "dense_width": width}


def _experts(config: _Config, counted: str, width: str) -> dict[str, Any]:
    """Routed experts, by the keys that hold their number and their width.

    transformers 5 saves the number as `num_local_experts`, whatever its name was.
    """
    if counted not in config.content and SAVED_EXPERTS in config.content:
        counted = SAVED_EXPERTS
    return {
        "num_experts": config.count(counted),
        "top_k": config.count("num_experts_per_tok"),
        "expert_width": config.count(width),
    }


def _first_dense(config: _Config) -> dict[str, int]:
    return _dense(config, config.count("first_k_dense_replace", 0, at_least=0))


def _qwen3_moe(config: _Config) -> dict[str, Any]:
    if config.content.get("use_sliding_window"):
        raise config.error(f"use_sliding_window is not supported; {_USE_YAML}")
    return {
        "attention": _gqa(config, qk_norm=True),
        "moe": _experts(config, "num_experts", "moe_intermediate_size"),
        **_dense(config, _qwen3_dense_layers(config)),
    }


def _qwen3_dense_layers(config: _Config) -> int:
    """Layers kept dense, by list or by stride; only leading ones can be expressed."""
    step = config.count("decoder_sparse_step", 1)
    kept = config.listed("mlp_only_layers")
    layers = range(config.count("num_hidden_layers"))
    dense = [layer for layer in layers if layer in kept or (layer + 1) % step]
    if dense != list(range(len(dense))):
        keys = "mlp_only_layers or decoder_sparse_step"
        fix = "only leading layers can be dense, so choose another model"
        raise config.error(f"{keys} puts a dense layer after one with experts; {fix}")
    return len(dense)


def _olmoe(config: _Config) -> dict[str, Any]:
    return {
        "attention": _gqa(config, qk_norm=True),
        "moe": _experts(config, "num_experts", "intermediate_size"),
    }


def _mixtral(config: _Config) -> dict[str, Any]:
    window = config.count("sliding_window", 0, at_least=0)
    sliding = {"sliding_window": window, "sliding_every": 1} if window else {}
    return {
        "attention": _gqa(config, **sliding),
        "moe": _experts(config, "num_local_experts", "intermediate_size"),
    }


def _gpt_oss(config: _Config) -> dict[str, Any]:
    return {
        "attention": _gqa(config, **_alternating_window(config)),
        "moe": _experts(config, "num_local_experts", "intermediate_size"),
    }


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


def _deepseek_v3(config: _Config) -> dict[str, Any]:
    if config.count("moe_layer_freq", 1) != 1:
        fix = "only models with experts in every layer after the dense ones are known"
        raise config.error(f"moe_layer_freq must be 1; {fix}")
    moe = _experts(config, "n_routed_experts", "moe_intermediate_size")
    shared = config.count("n_shared_experts", 0, at_least=0)
    moe["router"] = config.content.get("scoring_func") or "sigmoid"
    moe["shared_width"] = shared * moe["expert_width"]
    moe |= _groups(config)
    return {"attention": _mla(config), "moe": moe, **_first_dense(config)}


def _mla(config: _Config) -> dict[str, Any]:
    """Multi-head latent attention; every head reads the one latent."""
    heads, value = config.count("num_attention_heads"), config.count("v_head_dim")
    if config.count("qk_nope_head_dim") != value:
        fix = "ModelSpec has one head_dim for both, so choose another model"
        raise config.error(f"qk_nope_head_dim differs from v_head_dim; {fix}")
    return {
        "kind": "mla",
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": value,
        "q_lora_rank": config.count("q_lora_rank"),
        "kv_lora_rank": config.count("kv_lora_rank"),
        "qk_rope_dim": config.count("qk_rope_head_dim"),
    }


def _groups(config: _Config) -> dict[str, int]:
    return {
        "groups": config.count("n_group"),
        "groups_kept": config.count("topk_group"),
    }


def _bailing_moe(config: _Config) -> dict[str, Any]:
    """Ling; version 2 may state `bailing_moe` too, and is known by its architecture."""
    second = "v2" in f"{config.content.get('architectures')}{config.model_type}".lower()
    usual = "sigmoid" if second else "softmax"
    moe = _experts(config, "num_experts", "moe_intermediate_size")
    moe["router"] = config.content.get("score_function") or usual
    moe["shared_width"] = _bailing_shared_width(config)
    moe |= _groups(config) if second else {}
    qk_norm = bool(config.content.get("use_qk_norm", second))
    attention = _gqa(config, qk_norm=qk_norm)
    return {"attention": attention, "moe": moe, **_first_dense(config)}


def _bailing_shared_width(config: _Config) -> int:
    width = config.count("moe_intermediate_size")
    width = config.count("moe_shared_expert_intermediate_size", width)
    return width * config.count("num_shared_experts", 0, at_least=0)


_FAMILIES: dict[str, Callable[[_Config], dict[str, Any]]] = {
    "bailing_moe": _bailing_moe,
    "bailing_moe_v2": _bailing_moe,
    "deepseek_v3": _deepseek_v3,
    "gpt_oss": _gpt_oss,
    "mixtral": _mixtral,
    "olmoe": _olmoe,
    "qwen3_moe": _qwen3_moe,
}
