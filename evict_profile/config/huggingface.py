"""Reads a model's shape from the `config.json` that Hugging Face publishes with it.

Each family names the same quantities differently (`num_experts`,
`num_local_experts`, `n_routed_experts`); `FAMILIES` says which key holds what. What
`ModelSpec` cannot express, such as a dense layer between two with experts, is
refused: a wrong shape would be measured without complaint.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evict_profile.errors import ConfigError

SAVED_EXPERTS = "num_local_experts"
"""What transformers 5 saves the number of experts as, whatever its name was."""

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
    family = FAMILIES.get(_family_name(config))
    if family is None:
        raise config.unsupported()
    attention = _mla(config) if family.mla else _gqa(config, family)
    dense = family.dense_layers(config)
    return {
        "name": _name(config),
        "source": str(config.path),
        "hidden_size": config.count("hidden_size"),
        "num_layers": config.count("num_hidden_layers"),
        "vocab_size": config.count("vocab_size"),
        "dtype": _dtype(content),
        "attention": attention | family.window(config),
        "moe": _experts(config, family),
        "dense_layers": dense,
        # A config may state a width also where no layer is dense.
        "dense_width": config.count("intermediate_size") if dense else 0,
    }


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
            types = ", ".join(sorted(FAMILIES))
            return self.error(f"{known} is not one of {types}; {_USE_YAML}")
        fix = "give the config.json of a mixture-of-experts model"
        return self.error(f"{known} is a dense model without experts; {fix}")


def _has_experts(content: dict[str, Any]) -> bool:
    """Whether any level counts experts; multimodal models nest the language model."""
    nested = (value for value in content.values() if isinstance(value, dict))
    return not _EXPERT_COUNTS.isdisjoint(content) or any(map(_has_experts, nested))


def _family_name(config: _Config) -> str:
    """The model type; version 2 of Ling may state that of version 1."""
    second = "v2" in str(config.content.get("architectures")).lower()
    known = config.model_type
    return "bailing_moe_v2" if known == "bailing_moe" and second else known


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


def _experts(config: _Config, family: "Family") -> dict[str, Any]:
    """Routed and shared experts, and how they are chosen."""
    renamed = family.experts not in config.content and SAVED_EXPERTS in config.content
    width = config.count(family.expert_width)
    shared = config.count(family.shared, 0, at_least=0) if family.shared else 0
    moe = {
        "num_experts": config.count(SAVED_EXPERTS if renamed else family.experts),
        "top_k": config.count("num_experts_per_tok"),
        "expert_width": width,
        "router": config.content.get(family.router_key) or family.router,
        "shared_width": shared * config.count(family.shared_width, width),
    }
    if family.grouped:
        moe |= {"groups": config.count("n_group")}
        moe |= {"groups_kept": config.count("topk_group")}
    return moe


def _gqa(config: _Config, family: "Family") -> dict[str, Any]:
    """Grouped-query attention."""
    heads = config.count("num_attention_heads")
    return {
        "num_heads": heads,
        "num_kv_heads": config.count("num_key_value_heads"),
        "head_dim": config.count("head_dim", config.count("hidden_size") // heads),
        "qk_norm": bool(config.content.get("use_qk_norm", family.qk_norm)),
    }


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


def _first_dense(config: _Config) -> int:
    if config.count("moe_layer_freq", 1) != 1:
        fix = "only models with experts in every layer after the dense ones are known"
        raise config.error(f"moe_layer_freq must be 1; {fix}")
    return config.count("first_k_dense_replace", 0, at_least=0)


def _listed_dense(config: _Config) -> int:
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


@dataclass(frozen=True)
class Family:
    """Which keys of a `config.json` hold what, for models of one type.

    Attributes:
        experts, expert_width: keys of the number of routed experts, and of their width.
        qk_norm: whether attention has one, where no key says so.
        mla: whether attention is DeepSeek's, not grouped-query.
        window, dense_layers: read what takes more than a key.
        shared, shared_width: keys of the number of shared experts, "" for none, and of
            their width, which is that of a routed one where the key is missing.
        router_key, router: key of how scores are made, and what it is if missing.
        grouped: whether experts are picked from the best groups alone.
    """

    experts: str
    expert_width: str
    qk_norm: bool = False
    mla: bool = False
    window: Callable[[_Config], dict[str, int]] = lambda config: {}
    dense_layers: Callable[[_Config], int] = lambda config: 0
    shared: str = ""
    shared_width: str = ""
    router_key: str = ""
    router: str = "softmax"
    grouped: bool = False


_LING = Family(
    "num_experts",
    "moe_intermediate_size",
    dense_layers=_first_dense,
    shared="num_shared_experts",
    shared_width="moe_shared_expert_intermediate_size",
    router_key="score_function",
)
FAMILIES = {
    "bailing_moe": _LING,
    "bailing_moe_v2": replace(_LING, router="sigmoid", grouped=True, qk_norm=True),
    "deepseek_v3": Family(
        "n_routed_experts",
        "moe_intermediate_size",
        mla=True,
        dense_layers=_first_dense,
        shared="n_shared_experts",
        router_key="scoring_func",
        router="sigmoid",
        grouped=True,
    ),
    "gpt_oss": Family(SAVED_EXPERTS, "intermediate_size", window=_alternating_window),
    "mixtral": Family(SAVED_EXPERTS, "intermediate_size", window=_window_everywhere),
    "olmoe": Family("num_experts", "intermediate_size", qk_norm=True),
    "qwen3_moe": Family(
        "num_experts",
        "moe_intermediate_size",
        qk_norm=True,
        window=_no_window,
        dense_layers=_listed_dense,
    ),
}
