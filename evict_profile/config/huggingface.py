"""Reads a model's shape from the `config.json` that Hugging Face publishes with it.

Families differ in names, which `families` lists, and in how they say which layers hold
experts and which attend to all tokens: the rules below. What is read with a reservation
is said in the `notes` of the model, which are caveats of every table.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from evict_profile.config.families import FAMILIES, KEYS, UNKNOWN, Family
from evict_profile.config.model import AttentionSpec
from evict_profile.errors import ConfigError
from evict_profile.records import parse, replace

NESTED = ("text_config", "llm_config", "language_config")
"""Where multimodal models keep their language model."""
EXPERTS = {"moe", "sparse", "E"}
"""What lists of layers call one with routed experts."""
KINDS = {
    **{"attention": "full", "*": "full", "full": "full", "sliding": "sliding"},
    **{"chunked": "chunked", "linear": "linear", "mamba": "mamba", "M": "mamba"},
    **{"moe": "none", "mlp": "none", "E": "none", "-": "none", "conv": "conv"},
    **{"sparse": "sparse", "deepseek_sparse": "sparse"},
}
"""What lists of layers call their kinds, less "_attention"."""


@dataclass(frozen=True)
class Config:
    """A `config.json` whose missing and impossible values become one sentence."""

    content: dict[str, Any]
    path: Path

    def get(self, name: str) -> Any:
        """The first value that any key of a quantity has; null counts as missing."""
        values = (self.content.get(key) for key in KEYS.get(name, (name,)))
        return next((value for value in values if value is not None), None)

    def count(self, name: str, default: int | None = None, at_least: int = 1) -> int:
        """A whole number, or a list of equal ones, one a layer."""
        value = self.get(name)
        keys = KEYS.get(name, (name,))
        if isinstance(value, list) and len(value) == self.content.get(
            KEYS["layers"][0]
        ):
            value = value[0] if value.count(value[0]) == len(value) else value
        if value is None and default is not None:
            return default
        if value is None:
            raise self.missing(keys[0])
        if type(value) is not int or value < at_least:
            key = next(key for key in keys if self.content.get(key) is not None)
            need = f"give a whole number of at least {at_least}"
            raise self.error(f"{key} is {value!r}; {need}")
        return value

    def listed(self, name: str) -> Sequence[Any]:
        """A list; missing and null are the empty list."""
        value = self.get(name)
        if value is not None and not isinstance(value, list):
            raise self.error(f"{name} is {value!r}; give a list")
        return value or []

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
        value = self.get("blocks") or []
        if not isinstance(value, (list, str)):
            raise self.error(f"{KEYS['blocks'][0]} is {value!r}; give a list")
        return list(map(str, value))

    @cached_property
    def layers(self) -> int:
        return self.count("layers", len(self.blocks) or None)


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
    every = [kind["layers"] for kind in others if kind["kind"] == "sliding_every"]
    if every:
        window = {"sliding_window": others[0]["window"], "sliding_every": every[0]}
        attention, others = attention | window, []
    moe = _moe_layers(config)
    dense = config.layers - len(moe)
    if moe and moe[0] < dense and not config.blocks:
        notes += [
            "layers without experts lie between those with them; costs count both"
        ]
    stated = config.section("quantization_config").get("quant_method")
    if stated:
        notes += [f"weights are published as {stated}; sizes here are of its dtype"]
    return {
        "name": _name(config),
        "source": _source(config),
        "hidden_size": config.count("hidden_size"),
        "num_layers": config.layers,
        "vocab_size": config.count("vocab_size"),
        "attention": attention,
        "moe": _moe(config, family),
        "dense_layers": dense,
        "dense_width": 0 if config.blocks or not dense else config.count("dense_width"),
        "dtype": _dtype(config),
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
    config = Config(content | inner, path)
    names = [inner.get("model_type"), content.get("model_type")]
    if not any(names):
        raise config.missing("model_type")
    if config.get("experts") is None:
        raise config.error(
            f"model_type '{names[1]}' is a dense model without experts; give the "
            "config.json of a mixture-of-experts model"
        )
    # Versions of Ling may state the type of version 1.
    version = re.search(r"MoeV([\d_]+)For", str(config.get("architectures")))
    names += [f"{names[1]}_v{version[1]}"] if version else []
    known = [name for name in map(str, names[::-1]) if name in FAMILIES]
    known += [f"{n}_text" for n in map(str, names) if f"{n}_text" in FAMILIES]
    if known:
        return config, FAMILIES[known[0]], []
    note = f"model_type '{names[0] or names[1]}' is unknown, read by the usual keys"
    return config, UNKNOWN, [note]


def _name(config: Config) -> str:
    """Last part of `_name_or_path`, else the file's name or its folder's.

    In lower case and without the owner, so that it reads like the names in
    `configs/models/` and can be part of a file name.
    """
    published = Path(str(config.get("_name_or_path") or "")).name
    path = config.path.resolve()
    return (
        published or (path.parent.name if path.stem == "config" else path.stem)
    ).lower()


def _source(config: Config) -> str:
    """Where the file lies; of a file of ours, whence its sizes are."""
    published = str(config.get("_name_or_path"))
    ours = config.path.suffix == ".yaml" and "/" in published
    return f"https://huggingface.co/{published}" if ours else str(config.path)


def _dtype(config: Config) -> str:
    """bfloat16 unless float32: a latency of float16 is that of bfloat16."""
    name = str(config.get("dtype") or config.get("torch_dtype"))
    return "float32" if name.removeprefix("torch.") == "float32" else "bfloat16"


def _moe(config: Config, family: Family) -> dict[str, Any]:
    width = config.count(family.width)
    shared = config.count("shared_width", width, at_least=0)
    stated = int(config.get("shared_width") is not None)
    router = config.get("router") or family.router
    return {
        "num_experts": config.count("experts"),
        "top_k": config.count("top_k"),
        "expert_width": width,
        # DeepSeek-V4's scores are no softmax: each expert's is its own.
        "router": "sigmoid" if router == "sqrtsoftplus" else router,
        "shared_width": config.count(family.shared)
        if family.shared
        else config.count("shared_experts", stated, at_least=0) * shared,
        "groups": config.count("groups", 1),
        "groups_kept": config.count("groups_kept", 1),
        "expert_hidden": config.count("expert_hidden", 0),
        "gated": family.gated,
    }


def _attention(config: Config, family: Family) -> dict[str, Any]:
    heads = config.count("heads")
    found: dict[str, Any] = {
        "num_heads": heads,
        "qk_norm": bool(config.content.get("use_qk_norm", family.qk_norm)),
        "output_gate": config.get("output_gate") is True,
    }
    if family.kind == "mla" or config.get("kv_lora_rank") is not None:
        value, key = config.count("v_head_dim"), config.count("qk_nope_head_dim")
        return found | {
            "kind": "mla",
            # Every head reads the one latent.
            "num_kv_heads": heads,
            "head_dim": value,
            "qk_head_dim": 0 if key == value else key,
            "q_lora_rank": config.count("q_lora_rank", 0, at_least=0),
            "kv_lora_rank": config.count("kv_lora_rank"),
            "qk_rope_dim": config.count("qk_rope_head_dim"),
        }
    key = config.count("head_dim", config.count("hidden_size") // heads)
    value = config.count("v_head_dim", key)
    return found | {
        "num_kv_heads": config.count("kv_heads"),
        "head_dim": value,
        "qk_head_dim": 0 if key == value else key,
    }


def _moe_layers(config: Config) -> list[int]:
    """The layers that hold routed experts, by whichever rule the config states."""
    layers = range(config.layers)
    by_name = config.blocks or config.listed("mlp_layer_types")
    if by_name:
        return [n for n, kind in enumerate(by_name[: len(layers)]) if kind in EXPERTS]
    if named := config.get("moe_layers_enum"):
        return [n for n in layers if str(n) in str(named).split(",")]
    if held := config.listed("moe_layers"):
        return [n for n in layers if n in held]
    if isinstance(flags := config.get("moe_every"), list):
        return [n for n in layers if flags[n : n + 1] == [1]]
    first = config.count("first_dense", 0, at_least=0)
    every, dense = config.count("moe_every", 1), config.listed("mlp_only_layers")
    step = config.count(
        "decoder_sparse_step", config.count("interleave_moe_layer_step", 1)
    )
    return [
        n
        for n in layers
        if n >= first and n % every == 0 and (n + 1) % step == 0 and n not in dense
    ]


def _kinds(config: Config, family: Family) -> list[str]:
    """What each layer is, by whichever rule the config states."""
    layers = range(config.layers)
    named = list(config.listed("layer_types")) or config.blocks
    if named:
        kinds = [str(kind).removesuffix("_attention") for kind in named]
        if odd := sorted(set(kinds) - KINDS.keys()):
            raise config.error(
                f"layer_types has '{odd[0]}'; known are {', '.join(sorted(KINDS))}"
            )
        return [KINDS[kind] for kind in kinds[: len(layers)]]

    def of(kind: str, chosen: Callable[[int], bool]) -> list[str]:
        return [kind if chosen(n) else "full" for n in layers]

    if flags := config.listed("hybrid_layer_pattern"):
        return of("sliding", lambda n: flags[n : n + 1] == [1])
    if flags := config.listed("attn_type_list"):
        return of("linear", lambda n: flags[n : n + 1] == [0])
    if kda := config.section("linear_attn_config").listed("kda_layers"):
        return of("linear", lambda n: n + 1 in kda)
    if config.listed("compress_ratios"):
        return of("compressed", lambda n: True)
    if config.get("index_topk") is not None:
        return of("sparse", lambda n: True)
    sparse = config.section("sparse_attention_config").listed("sparse_attention_freq")
    if sparse:
        return of("sparse", lambda n: sparse[n : n + 1] == [1])
    period = config.get("full_attention_interval") or config.get("layer_group_size")
    if family.linear and period:
        every = config.count(
            "full_attention_interval", config.count("layer_group_size", 4)
        )
        return of("linear", lambda n: (n + 1) % every != 0)
    if family.window == "chunked":
        return of("chunked", lambda n: (n + 1) % 4 != 0)
    if family.window == "alternate":
        return of("sliding", lambda n: n % 2 == 0)
    if family.window == "everywhere" and config.get("sliding_window"):
        return of("sliding", lambda n: True)
    if config.get("use_sliding_window"):
        raise config.error(
            "use_sliding_window needs layer_types, which say the layers that slide"
        )
    return ["full"] * len(layers)


def _other_layers(
    config: Config, family: Family, attention: dict[str, Any]
) -> list[dict[str, Any]]:
    """Layers that do not attend to all tokens, by kind; windows that recur evenly from
    the first layer are part of the attention: one of kind "sliding_every"."""
    kinds = _kinds(config, family)
    sliding = [n for n, kind in enumerate(kinds) if kind == "sliding"]
    every = sliding[1] - sliding[0] if len(sliding) > 1 else len(kinds)
    own = parse(AttentionSpec, attention, str(config.path))
    hidden = config.count("hidden_size")
    if set(kinds) <= {"full", "sliding"} and sliding == list(
        range(0, len(kinds), every)
    ):
        window = config.count("sliding_window")
        if _windowed(config, own).weights(hidden) == own.weights(hidden):
            return [{"kind": "sliding_every", "layers": every, "window": window}]
    return [
        {
            "kind": kind,
            "layers": layers,
            "weights": _weights(kind, config, family, own),
            "window": _window(kind, config),
        }
        for kind, layers in sorted(Counter(kinds).items())
        if kind != "full"
    ]


def _windowed(config: Config, own: AttentionSpec) -> AttentionSpec:
    """The attention of a layer with a window, whose heads may be others."""
    if own.kind == "mla":
        return own
    key = config.count("window_head_dim", own.head_dim)
    changes = {
        "num_heads": config.count("window_heads"),
        "num_kv_heads": config.count("window_kv_heads"),
        "head_dim": config.count("window_value_dim", key),
        "qk_head_dim": key,
    }
    return replace(own, **changes)


def _window(kind: str, config: Config) -> int:
    """Tokens that a layer sees, at the most."""
    if kind == "sliding":
        return config.count("sliding_window")
    if kind == "chunked":
        return config.count("attention_chunk_size")
    blocks = config.section("sparse_attention_config")
    if kind == "sparse" and blocks.content:
        return blocks.count("sparse_topk_blocks") * blocks.count("sparse_block_size")
    if kind == "compressed":
        return config.count("index_topk") + config.count("sliding_window")
    return config.count("index_topk") if kind == "sparse" else 0


def _weights(kind: str, config: Config, family: Family, own: AttentionSpec) -> int:
    """Weights of one layer's attention or what stands in its place."""
    hidden = config.count("hidden_size")
    if kind == "sliding":
        return _windowed(config, own).weights(hidden)
    if kind == "sparse":
        return own.weights(hidden) + _index_weights(config, hidden)
    if kind == "compressed":
        inner, groups = own.num_heads * own.head_dim, config.count("o_groups")
        query, out = config.count("q_lora_rank"), config.count("o_lora_rank")
        query_weights = query * (hidden + inner)
        return query_weights + hidden * own.head_dim + out * (inner + groups * hidden)
    if kind == "mamba":
        heads = config.count("mamba_num_heads")
        inner = heads * config.count("mamba_head_dim")
        state = 2 * config.count("n_groups") * config.count("ssm_state_size")
        return hidden * (3 * inner + state + heads)
    if kind == "linear" and family.linear:
        return LINEAR[family.linear](config, hidden)
    return 0 if kind == "none" else own.weights(hidden)


def _index_weights(config: Config, hidden: int) -> int:
    """What chooses the tokens that sparse attention sees."""
    blocks = config.section("sparse_attention_config")
    if blocks.content:
        heads = blocks.count("sparse_num_index_heads")
        return hidden * (heads + 1) * blocks.count("sparse_index_dim")
    heads, dim = config.count("index_n_heads"), config.count("index_head_dim")
    return config.count("q_lora_rank", hidden) * heads * dim + hidden * (dim + heads)


def _gated_delta(config: Config, hidden: int) -> int:
    key_heads = config.count("linear_num_key_heads")
    value_heads = config.count("linear_num_value_heads")
    keys = key_heads * config.count("linear_key_head_dim")
    values = value_heads * config.count("linear_value_head_dim")
    return hidden * (2 * keys + 3 * values + 2 * value_heads)


def _kda(config: Config, hidden: int) -> int:
    stated = config.section("linear_attn_config")
    heads = stated.count("num_heads", config.count("linear_heads"))
    dim = stated.count("head_dim", config.count("linear_head_dim", 128))
    low_rank = dim * (hidden + heads * dim)
    full_rank = stated.get("use_full_rank_gate") is True
    gate = hidden * heads * dim if full_rank else low_rank
    return 4 * hidden * heads * dim + low_rank + gate + hidden * heads


def _lightning(config: Config, hidden: int) -> int:
    return 5 * hidden * config.count("heads") * config.count("head_dim")


LINEAR = {"gated_delta": _gated_delta, "kda": _kda, "lightning": _lightning}
