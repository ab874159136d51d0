"""Reads a model's shape from the `config.json` that Hugging Face publishes with it.

Families differ in names, which `configs/families.yaml` lists, and in how they say which
layers hold experts and which attend to all tokens: the rules below. What is read with a
reservation is said in the `notes` of the model, which are caveats of every table.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from evict_profile.config.model import AttentionSpec
from evict_profile.errors import ConfigError
from evict_profile.io import data_root
from evict_profile.records import parse, read_mapping, replace

NESTED = ("text_config", "llm_config", "language_config")
"""Where multimodal models keep their language model."""
EXPERTS = {"moe", "sparse", "E"}
"""What lists of layers call one with routed experts."""
KINDS = {
    **{name: name for name in ("full", "sliding", "chunked", "linear", "sparse")},
    **{"attention": "full", "*": "full", "mamba": "mamba", "M": "mamba"},
    **{"moe": "none", "mlp": "none", "E": "none", "-": "none", "conv": "conv"},
    "deepseek_sparse": "sparse",
}
"""What lists of layers call their kinds, less "_attention"."""


class Family(Struct, frozen=True):
    """A row of the table: what no key of a family's config says."""

    width: str = "moe_intermediate_size"
    shared: str = ""
    router: Literal["softmax", "sigmoid"] = "softmax"
    kind: Literal["", "mla"] = ""
    qk_norm: bool = False
    window: Literal["", "everywhere", "alternate", "chunked"] = ""
    linear: Literal["", "gated_delta", "kda", "lightning"] = ""
    gated: bool = True


class Families(Struct, frozen=True):
    """The table: by which keys quantities may be stated, and a row a family."""

    keys: dict[str, tuple[str, ...]]
    families: dict[str, Family]


@cache
def known_families() -> Families:
    """Read the table."""
    path = data_root() / "configs" / "families.yaml"
    return parse(Families, read_mapping(path), str(path))


@dataclass(frozen=True)
class Config:
    """A `config.json` whose missing and impossible values become one sentence."""

    content: dict[str, Any]
    path: Path

    def stated(self, name: str) -> tuple[str, Any]:
        """The first key of a quantity that has a value; null counts as missing."""
        keys = known_families().keys.get(name, (name,))
        found = ((key, self.content.get(key)) for key in keys)
        return next((each for each in found if each[1] is not None), (keys[0], None))

    def get(self, name: str) -> Any:
        return self.stated(name)[1]

    def count(self, name: str, default: int | None = None, at_least: int = 1) -> int:
        """A whole number, or a list of equal ones, one a layer."""
        key, value = self.stated(name)
        if isinstance(value, list) and len(value) == self.get("num_hidden_layers"):
            value = value[0] if value.count(value[0]) == len(value) else value
        if value is None and default is not None:
            return default
        if value is None:
            raise self.missing(key)
        if type(value) is not int or value < at_least:
            need = f"give a whole number of at least {at_least}"
            raise self.error(f"{key} is {value!r}; {need}")
        return value

    def listed(self, name: str) -> list[Any]:
        """A list; missing and null are the empty list."""
        value = self.get(name) or []
        if not isinstance(value, list):
            raise self.error(f"{name} is {value!r}; give a list")
        return value

    def section(self, name: str) -> "Config":
        """A nested mapping, empty where there is none."""
        value = self.content.get(name)
        return Config(value if isinstance(value, dict) else {}, self.path)

    def error(self, reason: str) -> ConfigError:
        return ConfigError(f"{self.path}: {reason}")

    def missing(self, key: str) -> ConfigError:
        fix = "add it as the published config.json has it"
        return self.error(f"key '{key}' is missing; {fix}")

    @cached_property
    def blocks(self) -> list[str]:
        """Layers that are attention or an MLP, not both, by name."""
        pattern = self.content.get("hybrid_override_pattern")
        letters = list(pattern) if isinstance(pattern, str) else []
        return list(map(str, self.listed("layers_block_type"))) or letters

    @cached_property
    def layers(self) -> int:
        return self.count("num_hidden_layers", len(self.blocks) or None)

    @cached_property
    def hidden(self) -> int:
        return self.count("hidden_size")


def is_huggingface(content: dict[str, Any]) -> bool:
    """Whether a mapping is a Hugging Face `config.json`, not a model file of ours."""
    return "model_type" in content or "architectures" in content


def model_mapping(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Translate a `config.json` into the mapping that `ModelSpec` takes.

    Args:
        content: the file's content.
        path: where it lies; named in errors and as the `source`.
    """
    config, family, notes = _read(content, path)
    attention = _attention(config, family)
    others = _other_layers(config, family, attention)
    moe = _moe_layers(config)
    dense = config.layers - len(moe)
    if moe and moe[0] < dense and not config.blocks:
        notes.append("layers without experts lie between those with experts")
    if method := config.section("quantization_config").get("quant_method"):
        notes.append(f"weights are published as {method}; sizes here are of its dtype")
    published = str(config.get("_name_or_path") or "")
    ours = path.suffix == ".yaml" and "/" in published
    folder = path.resolve().parent.name if path.stem == "config" else path.stem
    given = str(config.get("dtype") or config.get("torch_dtype"))
    return {
        # Without the owner and in lower case, to be part of a file's name.
        "name": (Path(published).name or folder).lower(),
        "source": f"https://huggingface.co/{published}" if ours else str(path),
        "hidden_size": config.hidden,
        "num_layers": config.layers,
        "vocab_size": config.count("vocab_size"),
        "attention": attention,
        "moe": _moe(config, family),
        "dense_layers": dense,
        "dense_width": 0 if config.blocks or not dense else config.count("dense_width"),
        # A latency of float16 is that of bfloat16.
        "dtype": "float32" if given.endswith("float32") else "bfloat16",
        "tied_embeddings": config.get("tie_word_embeddings") is True,
        "mtp_layers": config.count("mtp_layers", 0, at_least=0),
        "other_layers": others,
        "notes": notes,
    }


def _read(content: dict[str, Any], path: Path) -> tuple[Config, Family, list[str]]:
    """The language model's own config, its row, and what is to be said of either."""
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


def _attention(config: Config, family: Family) -> dict[str, Any]:
    heads = config.count("num_attention_heads")
    found: dict[str, Any] = {
        "num_heads": heads,
        "qk_norm": bool(config.content.get("use_qk_norm", family.qk_norm)),
        "output_gate": config.get("output_gate") is True,
    }
    if family.kind == "mla" or config.get("kv_lora_rank") is not None:
        value, key = config.count("v_head_dim"), config.count("qk_nope_head_dim")
        found |= {
            "kind": "mla",
            "q_lora_rank": config.count("q_lora_rank", 0, at_least=0),
            "kv_lora_rank": config.count("kv_lora_rank"),
            "qk_rope_dim": config.count("qk_rope_head_dim"),
        }
        kv_heads = heads  # every head reads the one latent
    else:
        key = config.count("head_dim", config.hidden // heads)
        value, kv_heads = config.count("v_head_dim", key), config.count("kv_heads")
    own = 0 if key == value else key
    return found | {"num_kv_heads": kv_heads, "head_dim": value, "qk_head_dim": own}


def _moe_layers(config: Config) -> list[int]:
    """The layers that hold routed experts, by whichever rule the config states."""
    layers = range(config.layers)
    if by_name := config.blocks or config.listed("mlp_layer_types"):
        return [n for n, kind in enumerate(by_name[: len(layers)]) if kind in EXPERTS]
    if named := config.get("moe_layers_enum"):
        return [n for n in layers if str(n) in str(named).split(",")]
    if numbers := config.listed("moe_layers"):
        return [n for n in layers if n in numbers]
    if isinstance(flags := config.get("moe_every"), list):
        return _flagged(flags, layers)
    first, dense = config.count("first_dense", 0, 0), config.listed("mlp_only_layers")
    every, step = config.count("moe_every", 1), config.count("moe_step", 1)
    held = (n for n in layers if n >= first and n % every == 0 and (n + 1) % step == 0)
    return [n for n in held if n not in dense]


def _flagged(flags: Sequence[Any], layers: range, value: int = 1) -> list[int]:
    return [n for n in layers if list(flags[n : n + 1]) == [value]]


def _kinds(config: Config, family: Family) -> list[str]:
    """What each layer is, by whichever rule the config states."""
    layers = range(config.layers)
    if named := config.listed("layer_types") or config.blocks:
        kinds = [str(kind).removesuffix("_attention") for kind in named[: len(layers)]]
        if odd := sorted(set(kinds) - KINDS.keys()):
            known = ", ".join(sorted(KINDS))
            raise config.error(f"layer_types has '{odd[0]}'; known are {known}")
        return [KINDS[kind] for kind in kinds]
    kda = config.section("linear_attn_config").listed("kda_layers")
    blocks = config.section("sparse_attention_config").listed("sparse_attention_freq")
    chosen: dict[str, Sequence[int]] = {
        "sliding": _flagged(config.listed("hybrid_layer_pattern"), layers),
        "linear": _flagged(config.listed("attn_type_list"), layers, 0)
        or [n for n in layers if n + 1 in kda],
        "compressed": layers if config.listed("compress_ratios") else (),
        "sparse": _flagged(blocks, layers),
    }
    if not any(chosen.values()):
        if config.get("index_topk") is not None:
            chosen["sparse"] = layers
        elif family.linear:
            period = config.count("full_every", 4)
            chosen["linear"] = [n for n in layers if (n + 1) % period]
        elif family.window == "chunked":
            chosen["chunked"] = [n for n in layers if (n + 1) % 4]
        elif family.window == "alternate":
            chosen["sliding"] = layers[::2]
        elif family.window and config.get("sliding_window"):
            chosen["sliding"] = layers
        elif config.get("use_sliding_window"):
            why = "use_sliding_window needs layer_types, which say the layers"
            raise config.error(why)
    by_layer = {n: kind for kind, numbers in chosen.items() for n in numbers}
    return [by_layer.get(n, "full") for n in layers]


def _other_layers(
    config: Config, family: Family, attention: dict[str, Any]
) -> list[dict[str, Any]]:
    """Layers that do not attend to all tokens, by kind.

    Windows that recur evenly from the first layer become part of the attention.
    """
    kinds = _kinds(config, family)
    own = parse(AttentionSpec, attention, str(config.path))
    counts = Counter(kind for kind in kinds if kind != "full")
    if set(counts) == {"sliding"}:
        window, windowed = config.count("sliding_window"), _windowed(config, own)
        sliding = [n for n, kind in enumerate(kinds) if kind == "sliding"]
        every = (sliding[1:] or [len(kinds)])[0] - sliding[0]
        even = sliding == list(range(0, len(kinds), every))
        if even and windowed.weights(config.hidden) == own.weights(config.hidden):
            attention |= {"sliding_window": window, "sliding_every": every}
            return []
    return [
        {
            "kind": kind,
            "layers": layers,
            "weights": _weights(kind, config, family, own),
            "window": _window(kind, config),
        }
        for kind, layers in sorted(counts.items())
    ]


def _windowed(config: Config, own: AttentionSpec) -> AttentionSpec:
    """The attention of a layer with a window, whose heads may be others."""
    if own.kind == "mla":
        return own
    key = config.count("window_head_dim", own.qk_head_dim or own.head_dim)
    return replace(
        own,
        num_heads=config.count("window_heads"),
        num_kv_heads=config.count("window_kv_heads"),
        head_dim=config.count("window_value_dim", key),
        qk_head_dim=key,
    )


def _window(kind: str, config: Config) -> int:
    """Tokens that a layer sees, at the most."""
    blocks = config.section("sparse_attention_config")
    if kind == "sparse" and blocks.content:
        return blocks.count("sparse_topk_blocks") * blocks.count("sparse_block_size")
    keys = {
        "sliding": ["sliding_window"],
        "chunked": ["attention_chunk_size"],
        "sparse": ["index_topk"],
        "compressed": ["index_topk", "sliding_window"],
    }
    return sum(config.count(key) for key in keys.get(kind, ()))


def _weights(kind: str, config: Config, family: Family, own: AttentionSpec) -> int:
    """Weights of one layer's attention, or of what stands in its place."""
    if kind == "none":
        return 0
    if kind == "sliding":
        return _windowed(config, own).weights(config.hidden)
    rule = WEIGHTS.get(family.linear if kind == "linear" else kind)
    return rule(config, own) if rule else own.weights(config.hidden)


def _sparse(config: Config, own: AttentionSpec) -> int:
    """Attention, and what chooses the tokens that it sees."""
    blocks, hidden = config.section("sparse_attention_config"), config.hidden
    if blocks.content:
        heads, dim = blocks.count("sparse_num_index_heads"), "sparse_index_dim"
        return own.weights(hidden) + hidden * (heads + 1) * blocks.count(dim)
    heads, dim_ = config.count("index_n_heads"), config.count("index_head_dim")
    query = config.count("q_lora_rank", hidden) * heads * dim_
    return own.weights(hidden) + query + hidden * (dim_ + heads)


def _compressed(config: Config, own: AttentionSpec) -> int:
    """DeepSeek-V4's: a latent query, one head of keys, an output in groups."""
    inner, hidden = own.num_heads * own.head_dim, config.hidden
    query, out = config.count("q_lora_rank"), config.count("o_lora_rank")
    output = out * (inner + config.count("o_groups") * hidden)
    return query * (hidden + inner) + hidden * own.head_dim + output


def _mamba(config: Config, own: AttentionSpec) -> int:
    heads = config.count("mamba_num_heads")
    inner = heads * config.count("mamba_head_dim")
    state = 2 * config.count("n_groups") * config.count("ssm_state_size")
    return config.hidden * (3 * inner + state + heads)


def _gated_delta(config: Config, own: AttentionSpec) -> int:
    heads = config.count("linear_num_value_heads")
    values = heads * config.count("linear_value_head_dim")
    keys = config.count("linear_num_key_heads") * config.count("linear_key_head_dim")
    return config.hidden * (2 * keys + 3 * values + 2 * heads)


def _kda(config: Config, own: AttentionSpec) -> int:
    stated, hidden = config.section("linear_attn_config"), config.hidden
    heads = stated.count("num_heads", config.count("linear_heads"))
    dim = stated.count("head_dim", config.count("linear_head_dim", 128))
    full, low_rank = hidden * heads * dim, dim * (hidden + heads * dim)
    gate = full if stated.get("use_full_rank_gate") is True else low_rank
    return 4 * full + low_rank + gate + hidden * heads


def _lightning(config: Config, own: AttentionSpec) -> int:
    return 5 * config.hidden * own.num_heads * own.head_dim


WEIGHTS: dict[str, Callable[[Config, AttentionSpec], int]] = {
    "sparse": _sparse,
    "compressed": _compressed,
    "mamba": _mamba,
    "gated_delta": _gated_delta,
    "kda": _kda,
    "lightning": _lightning,
}
"""How the weights of a layer are counted, by its kind, a linear one's by its family."""
