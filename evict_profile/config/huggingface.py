"""A model's shape from a Hugging Face `config.json`.

Families differ in key names (`configs/families.yaml`) and in how they state which
layers hold experts and which attend to all tokens (the rules here).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evict_profile.config.attention import attention_mapping, flagged
from evict_profile.config.families import Config, Family, known_families
from evict_profile.config.names import published_name
from evict_profile.config.weights import published_format
from evict_profile.errors import ConfigError

NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
"""Keys of the language model in multimodal configs."""
EXPERTS = {"moe", "sparse", "E", "hash_moe"}
"""Names of layers with routed experts."""


def is_huggingface(content: dict[str, Any]) -> bool:
    return "model_type" in content or "architectures" in content


def model_mapping(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """The fields of `ModelSpec`; `path` is named in errors and as the `source`."""
    config, family, notes = _read(content, path)
    moe = _moe_layers(config)
    if not moe:
        raise _dense(content, config)
    attention, others = attention_mapping(config, family)
    dense = config.layers - len(moe)
    if moe and moe[0] < dense and not config.blocks:
        notes.append("layers without experts lie between those with experts")
    stored, unknown = published_format(config)
    notes += unknown
    stated = str(config.get("_name_or_path") or "")
    name = published_name(path, stated)
    published = stated if path.suffix == ".yaml" else name
    given = str(config.get("dtype") or config.get("torch_dtype"))
    mapping = {
        # Without the owner and in lower case, to be part of a file's name.
        "name": name.rpartition("/")[2].lower(),
        "source": f"https://huggingface.co/{published}"
        if "/" in published
        else str(path),
        "hidden_size": config.hidden,
        "num_layers": config.layers,
        "vocab_size": config.count("vocab_size"),
        "attention": attention,
        "moe": _moe(config, family),
        "dense_layers": dense,
        "dense_width": 0 if config.blocks or not dense else config.count("dense_width"),
        # A latency of float16 is that of bfloat16.
        "dtype": "float32" if given.endswith("float32") else "bfloat16",
        "checkpoint_dtype": config.get("checkpoint_dtype") or stored,
        "tied_embeddings": config.get("tie_word_embeddings") is True,
        "mtp_layers": config.count("mtp_layers", 0, at_least=0),
        "residual_streams": config.count("hc_mult", 1),
        "other_layers": others,
        "notes": notes,
    }
    if config.unknown and (unread := config.unread()):
        raise config.unfamiliar(f"key '{unread[0]}' is not read")
    return mapping


def _read(content: dict[str, Any], path: Path) -> tuple[Config, Family, list[str]]:
    parts = [content, *_nested(content)]
    names = [str(part["model_type"]) for part in parts[::-1] if part.get("model_type")]
    if not names:
        why = "key 'model_type' is missing; add it, it says how the others are read"
        raise Config(content, path).error(why)
    merged = {key: value for part in parts for key, value in part.items()}
    # Embeddings are the whole model's, so the outermost config states them.
    tied = (part.get("tie_word_embeddings") for part in parts)
    merged["tie_word_embeddings"] = next((t for t in tied if t is not None), None)
    # Versions of Ling may state the type of version 1.
    version = re.search(r"MoeV([\d_]+)For", str(content.get("architectures")))
    versioned = [f"{names[-1]}_v{version[1]}"] if version else []
    tried = (*versioned, *names, *(f"{name}_text" for name in names))
    rows = known_families().families
    family = next((rows[name] for name in tried if name in rows), None)
    implied = family.implied if family else {}
    stated = {key: value for key, value in merged.items() if value is not None}
    config = Config(implied | stated, path, "" if family else names[0])
    if not config.get("experts"):
        raise _dense(content, config)
    if family and family.refused:
        raise config.error(f"model_type '{names[0]}' is not read: {family.refused}")
    note = f"model_type '{names[0]}' is unknown, read by the usual keys"
    return config, family or Family(), [] if family else [note]


def _nested(content: dict[str, Any]) -> list[dict[str, Any]]:
    part = next((content[n] for n in NESTED if isinstance(content.get(n), dict)), None)
    return [part, *_nested(part)] if part else []


def _dense(content: dict[str, Any], config: Config) -> ConfigError:
    name = content.get("model_type")
    if not (keys := list(_naming_experts(content, ""))):
        return config.error(
            f"model_type '{name}' has no key that names experts, as dense models have "
            "none; give the config.json of a mixture-of-experts model, or its shape as "
            "a YAML file of configs/models"
        )
    if config.unknown:
        return config.unfamiliar(f"key '{keys[0]}' is not read")
    return config.error(f"no layer has experts, although key '{keys[0]}' names some")


def _naming_experts(content: dict[str, Any], within: str) -> Iterator[str]:
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _naming_experts(value, f"{within}{key}.")
        elif "expert" in key and type(value) in (int, list) and value not in (0, 1, []):
            yield within + key


def _moe(config: Config, family: Family) -> dict[str, Any]:
    width = config.count(family.width)
    one_width = config.count("shared_width", width, at_least=0)
    stated = int(config.get("shared_width") is not None)
    shared = config.count("shared_experts", stated, at_least=0) * one_width
    router = config.get("router") or family.router
    return {
        "num_experts": config.count("experts"),
        "top_k": config.count("top_k"),
        "expert_width": width,
        # DeepSeek-V4's scores are no softmax: each expert's is its own.
        "router": "sigmoid" if router == "sqrtsoftplus" else router,
        "shared_width": config.count(family.shared) if family.shared else shared,
        "groups": config.count("groups", 1),
        "groups_kept": config.count("topk_group", 1),
        "expert_hidden": config.count("expert_hidden", 0),
        "gated": family.gated,
    }


def _moe_layers(config: Config) -> list[int]:
    layers = range(config.layers)
    if by_name := config.blocks or config.listed("mlp_layer_types"):
        return [n for n, kind in enumerate(by_name[: len(layers)]) if kind in EXPERTS]
    if named := config.get("moe_layers_enum"):
        return [n for n in layers if str(n) in str(named).split(",")]
    if numbers := config.listed("moe_layers"):
        return [n for n in layers if n in numbers]
    if isinstance(flags := config.get("moe_every"), list):
        return flagged(flags, layers)
    first, dense = config.count("first_dense", 0, 0), config.listed("mlp_only_layers")
    every, step = config.count("moe_every", 1), config.count("moe_step", 1)
    held = (n for n in layers if n >= first and n % every == 0 and (n + 1) % step == 0)
    return [n for n in held if n not in dense]
