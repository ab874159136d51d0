"""A model's shape from a Hugging Face `config.json`.

Families differ in key names (`configs/families.yaml`) and in how they state which
layers hold experts and which attend to all tokens (the rules here). `notes` hold
reservations.
"""

import re
from pathlib import Path
from typing import Any

from evict_profile.config.attention import attention_mapping, flagged
from evict_profile.config.families import Config, Family, known_families
from evict_profile.config.names import published_name
from evict_profile.config.weights import published_format

NESTED = ("text_config", "llm_config", "language_config")
"""Keys of the language model in multimodal configs."""
EXPERTS = {"moe", "sparse", "E"}
"""Names of layers with routed experts."""


def is_huggingface(content: dict[str, Any]) -> bool:
    """Whether a mapping is a `config.json`, not a model file of this project."""
    return "model_type" in content or "architectures" in content


def model_mapping(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """The fields of `ModelSpec`; `path` is named in errors and as the `source`."""
    config, family, notes = _read(content, path)
    attention, others = attention_mapping(config, family)
    moe = _moe_layers(config)
    dense = config.layers - len(moe)
    if moe and moe[0] < dense and not config.blocks:
        notes.append("layers without experts lie between those with experts")
    stored, unknown = published_format(config)
    notes += unknown
    stated = str(config.get("_name_or_path") or "")
    name = published_name(path, stated)
    published = stated if path.suffix == ".yaml" else name
    given = str(config.get("dtype") or config.get("torch_dtype"))
    return {
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


def _read(content: dict[str, Any], path: Path) -> tuple[Config, Family, list[str]]:
    """The language model's config, its family, and notes."""
    inner: dict[str, Any] = next(
        (content[n] for n in NESTED if isinstance(content.get(n), dict)), {}
    )
    config, rows = Config(content | inner, path), known_families().families
    names = [str(c["model_type"]) for c in (inner, content) if c.get("model_type")]
    if not names:
        raise config.missing("model_type")
    if config.get("experts") is None:
        raise config.error(
            f"model_type '{names[-1]}' is a dense model without experts; give the "
            "config.json of a mixture-of-experts model"
        )
    # Versions of Ling may state the type of version 1.
    version = re.search(r"MoeV([\d_]+)For", str(config.get("architectures")))
    versioned = [f"{names[-1]}_v{version[1]}"] if version else []
    for name in (*versioned, *names, *(f"{name}_text" for name in names)):
        if name in rows:
            return config, rows[name], []
    note = f"model_type '{names[0]}' is unknown, read by the usual keys"
    return config, Family(), [note]


def _moe(config: Config, family: Family) -> dict[str, Any]:
    width = config.count(family.width)
    each = config.count("shared_width", width, at_least=0)
    stated = int(config.get("shared_width") is not None)
    shared = config.count("shared_experts", stated, at_least=0) * each
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
    """Layers with routed experts, by any of the config's rules."""
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
