"""What the layers of a `config.json` attend to, and the weights of each kind."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from evict_profile.config.families import Config, Family
from evict_profile.config.model import AttentionSpec
from evict_profile.records import parse, replace

KINDS = {
    **{name: name for name in ("full", "sliding", "chunked", "linear", "sparse")},
    **{"attention": "full", "*": "full", "mamba": "mamba", "M": "mamba"},
    **{"moe": "none", "mlp": "none", "E": "none", "-": "none", "conv": "conv"},
    **{"deepseek_sparse": "sparse", "indexed": "sparse"},
    **{"compressed_sparse": "csa", "heavily_compressed": "hca"},
}
"""Kinds of layers by their names in lists, less "_attention"."""

COMPRESSED = {0: "sliding", 4: "csa", 128: "hca"}
"""DeepSeek-V4's kinds of layers by how many tokens one cached token stands for."""


def attention_mapping(
    config: Config, family: Family
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The fields of `AttentionSpec`, and of a `LayerSpec` for each other kind.

    Windows that recur evenly from the first layer are part of the attention.
    """
    kinds = _kinds(config, family)
    attention = _attention(_of_kind("full", kinds, config), family)
    spec = parse(AttentionSpec, attention, str(config.path))
    counts = Counter(kind for kind in kinds if kind != "full")
    if set(counts) == {"sliding"} and (every := _even_period(kinds)):
        windowed = _windowed(_of_kind("sliding", kinds, config), spec)
        if windowed.weights(config.hidden) == spec.weights(config.hidden):
            window = config.count("sliding_window")
            return attention | {"sliding_window": window, "sliding_every": every}, []
    others = []
    for kind, layers in sorted(counts.items()):
        rule = _rule(config, family) if kind == "linear" else ""
        weights, state = _sizes(rule or kind, _of_kind(kind, kinds, config), family)
        other = {"kind": kind, "layers": layers, "rule": rule, "state": state}
        others.append({**other, "weights": weights, "window": _window(kind, config)})
    return attention, others


def _of_kind(kind: str, kinds: list[str], config: Config) -> Config:
    stated = config.section("per_layer_config").content
    layers = (str(n) for n, one in enumerate(kinds) if one == kind)
    rules = [stated.get(n.zfill(2), stated.get(n, {})) for n in layers]
    if rules and not (
        isinstance(rules[0], dict) and rules.count(rules[0]) == len(rules)
    ):
        raise config.error(f"per_layer_config differs among layers of {kind} attention")
    content = config.content | (rules[0] if rules else {})
    return Config(content, config.path, config.unknown, config.read)


def _even_period(kinds: list[str]) -> int:
    sliding = [n for n, kind in enumerate(kinds) if kind == "sliding"]
    every = (sliding[1:] or [len(kinds)])[0] - sliding[0]
    return every if sliding == list(range(0, len(kinds), every)) else 0


def _attention(config: Config, family: Family) -> dict[str, Any]:
    heads, stated = config.count("num_attention_heads"), config.get("use_qk_norm")
    sizes: dict[str, Any] = {
        "num_heads": heads,
        "qk_norm": bool(family.qk_norm if stated is None else stated),
        "output_gate": config.get("output_gate") is True,
    }
    if family.kind == "mla" or config.get("kv_lora_rank") is not None:
        value, key = config.count("v_head_dim"), config.count("qk_nope_head_dim")
        sizes |= {
            "kind": "mla",
            "q_lora_rank": config.count("q_lora_rank", 0, at_least=0),
            "kv_lora_rank": config.count("kv_lora_rank"),
            "qk_rope_dim": config.count("qk_rope_head_dim", at_least=0),
        }
        kv_heads = heads  # every head reads the one latent
    else:
        key = config.count("head_dim", config.hidden // heads)
        value, kv_heads = config.count("v_head_dim", key), config.count("kv_heads")
    qk_dim = 0 if key == value else key
    return sizes | {"num_kv_heads": kv_heads, "head_dim": value, "qk_head_dim": qk_dim}


def flagged(flags: Sequence[Any], layers: range, value: int = 1) -> list[int]:
    return [n for n in layers if list(flags[n : n + 1]) == [value]]


def _kinds(config: Config, family: Family) -> list[str]:
    layers = range(config.layers)
    if named := config.listed("layer_types") or config.blocks:
        kinds = [str(kind).removesuffix("_attention") for kind in named[: len(layers)]]
        if odd := sorted(set(kinds) - KINDS.keys()):
            if config.unknown:
                raise config.unfamiliar(f"its layer_types have '{odd[0]}'")
            known = ", ".join(sorted(KINDS))
            raise config.error(f"layer_types has '{odd[0]}'; known are {known}")
        linear = "mamba" if family.linear == "mamba" else "linear"
        return [KINDS[kind] if kind != "linear" else linear for kind in kinds]
    kda = config.section("linear_attn_config").listed("kda_layers")
    blocks = config.section("sparse_attention_config").listed("sparse_attention_freq")
    chosen: dict[str, Sequence[int]] = {
        "sliding": flagged(config.listed("hybrid_layer_pattern"), layers),
        "linear": flagged(config.listed("attn_type_list"), layers, 0)
        or [n for n in layers if n + 1 in kda],
        "sparse": flagged(blocks, layers),
    }
    if ratios := config.listed("compress_ratios")[: len(layers)]:
        if odd := [ratio for ratio in ratios if ratio not in COMPRESSED]:
            fail = config.unfamiliar if config.unknown else config.error
            raise fail(f"compress_ratios has {odd[0]}, which is none of 0, 4 and 128")
        chosen = {kind: flagged(ratios, layers, r) for r, kind in COMPRESSED.items()}
    if not any(chosen.values()):
        if config.get("index_topk") is not None:
            chosen["sparse"] = layers
        elif _rule(config, family):
            period = config.count("full_every", 4)
            chosen["linear"] = [n for n in layers if (n + 1) % period]
        elif every := config.count("global_every", 0, at_least=0):
            chosen["sliding"] = [n for n in layers if (n + 1) % every]
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


def _rule(config: Config, family: Family) -> str:
    if family.linear:
        return family.linear
    kda = config.section("linear_attn_config").content
    delta = config.get("linear_num_value_heads") is not None
    return "kda" if kda else "gated_delta" if delta else ""


def _windowed(config: Config, own: AttentionSpec) -> AttentionSpec:
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
    blocks = config.section("sparse_attention_config")
    if kind == "sparse" and blocks.content:
        return blocks.count("sparse_topk_blocks") * blocks.count("sparse_block_size")
    keys = {
        "sliding": ["sliding_window"],
        "chunked": ["attention_chunk_size"],
        "sparse": ["index_topk"],
        "csa": ["index_topk", "sliding_window"],
        "hca": ["sliding_window"],
    }
    return sum(config.count(key) for key in keys.get(kind, ()))


def _sizes(kind: str, config: Config, family: Family) -> tuple[int, int]:
    spec = parse(AttentionSpec, _attention(config, family), str(config.path))
    if kind == "none":
        mlps = sum(block in ("mlp", "-") for block in config.blocks)
        others = sum(KINDS.get(block) == "none" for block in config.blocks)
        width = config.count("dense_width") if mlps else 0
        return mlps * 2 * config.hidden * width // others, 0
    if config.get("o_lora_rank") is not None:
        return _compressed(kind, config), 0
    if rule := RECURRENT.get(kind):
        return rule(config, spec)
    if kind == "linear":
        raise config.unfamiliar("its linear layers have no known rule")
    if kind == "sparse":
        return _sparse(config, spec), 0
    attention = _windowed(config, spec) if kind == "sliding" else spec
    return attention.weights(config.hidden), 0


def _sparse(config: Config, own: AttentionSpec) -> int:
    blocks, hidden = config.section("sparse_attention_config"), config.hidden
    if blocks.content:
        heads, dim = blocks.count("sparse_num_index_heads"), "sparse_index_dim"
        return own.weights(hidden) + hidden * (heads + 1) * blocks.count(dim)
    heads, dim_ = config.count("index_n_heads"), config.count("index_head_dim")
    query = config.count("q_lora_rank", hidden) * heads * dim_
    types = config.listed("indexer_types")[: config.layers] or ["full"]
    indexer = (query + hidden * (dim_ + heads)) * types.count("full") // len(types)
    return own.weights(hidden) + indexer


def _compressed(kind: str, config: Config) -> int:
    """DeepSeek-V4: a latent query, one head of keys, an output in groups.

    A compressor makes keys and their gates, two of each where windows overlap (`csa`),
    whose indexer has a compressor of its own.
    """
    hidden, dim = config.hidden, config.count("head_dim")
    inner = config.count("num_attention_heads") * dim
    query, out = config.count("q_lora_rank"), config.count("o_lora_rank")
    output = out * (inner + config.count("o_groups") * hidden)
    attention = query * (hidden + inner) + hidden * dim + output
    if kind != "csa":
        return attention + (2 * hidden * dim if kind == "hca" else 0)
    heads, index_dim = config.count("index_n_heads"), config.count("index_head_dim")
    indexer = query * heads * index_dim + hidden * heads
    return attention + 4 * hidden * (dim + index_dim) + indexer


def _mamba(config: Config, own: AttentionSpec) -> tuple[int, int]:
    heads, size = config.count("mamba_heads"), config.count("mamba_state")
    inner, groups = heads * config.count("mamba_dim"), config.count("mamba_groups")
    return config.hidden * (3 * inner + 2 * groups * size + heads), inner * size


def _gated_delta(config: Config, own: AttentionSpec) -> tuple[int, int]:
    heads = config.count("linear_num_value_heads")
    dim = config.count("linear_key_head_dim")
    values = heads * config.count("linear_value_head_dim")
    keys = config.count("linear_num_key_heads") * dim
    return config.hidden * (2 * keys + 3 * values + 2 * heads), values * dim


def _kda(config: Config, own: AttentionSpec) -> tuple[int, int]:
    stated, hidden = config.section("linear_attn_config"), config.hidden
    heads = stated.count("num_heads", 0) or config.count("linear_heads")
    dim = stated.count("head_dim", 0) or config.count("linear_head_dim", 128)
    full, low_rank = hidden * heads * dim, dim * (hidden + heads * dim)
    forget = full if config.get("no_kda_lora") is True else low_rank
    gate = full if stated.get("use_full_rank_gate") is True else forget
    return 4 * full + forget + gate + hidden * heads, heads * dim**2


def _lightning(config: Config, own: AttentionSpec) -> tuple[int, int]:
    inner = own.num_heads * own.head_dim
    return 5 * config.hidden * inner, inner * own.head_dim


def _conv(config: Config, own: AttentionSpec) -> tuple[int, int]:
    return 4 * config.hidden**2, config.hidden * config.count("conv_L_cache")


RECURRENT: dict[str, Callable[[Config, AttentionSpec], tuple[int, int]]] = {
    "mamba": _mamba,
    "gated_delta": _gated_delta,
    "kda": _kda,
    "lightning": _lightning,
    "conv": _conv,
}
"""Sizes of a layer with a state by kind, of a linear one by its family's rule."""
