"""The format of published expert weights.

It stands in `quantization_config` of a `config.json`, and in the `hf_quant_config.json`
beside it, in the words of whichever program quantised the model.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from fnmatch import translate

from evict_profile.config.families import Config
from evict_profile.config.model import BYTES_PER_VALUE
from evict_profile.records import read_mapping

WORDS = ("quant_algo", "moe_quant_algo", "quant_method", "format", "dtype")
"""Keys whose values name a format."""
FORMATS = {
    "nv_?fp4": "nvfp4",
    "mx_?fp8": "mxfp8",
    "mx_?fp4": "mxfp4",
    "int4|w4a": "int4",
    "int8|w8a16|w8a8": "int8",
    "fp8.*(block|_pb_)": "fp8_block",
    "fp8|float8": "fp8",
    "fp4|float4": "fp4",
}
"""Formats by patterns of their names in any program; the first that is found."""
SCALED = {"fp8/32": "mxfp8", "fp4/16": "nvfp4", "fp4/32": "mxfp4", "fp4/None": ""}
"""Formats by the number of values that share a scale."""
UNKNOWN = "weights are published in a format that is not known"
EXPERTS = re.compile(r"\bexperts\b")


def published_format(config: Config) -> tuple[str, list[str]]:
    """The format of routed experts, and notes; bfloat16 of one without a name here."""
    quantized = _quantization(config)
    stated = _stated(quantized, config) if quantized.content else ""
    if not stated and config.get("expert_dtype") == "fp4":
        return "mxfp4", []
    if stated in BYTES_PER_VALUE or not quantized.content:
        return stated or "bfloat16", []
    named = " ".join(str(quantized.get(k)) for k in WORDS if quantized.get(k))
    of = f"{named or 'without quant_method'}{f', {stated}' * bool(stated)}"
    return "bfloat16", [f"{UNKNOWN} ({of})"]


def _quantization(config: Config) -> Config:
    stated, path = config.section("quantization_config").content, config.path
    beside = path.with_name(path.name.replace("config.json", "hf_quant_config.json"))
    if beside != path and beside.is_file():
        content = read_mapping(beside)
        stated = stated | Config(content, beside).section("quantization").content
    return Config(stated, path)


def _stated(quantized: Config, config: Config) -> str:
    layers = quantized.section("quantized_layers")
    if parts := [
        layers.section(name) for name in layers.content if EXPERTS.search(name)
    ]:
        return _by_words(parts[len(parts) // 2])
    if config.get("expert_dtype") == "fp4" and not quantized.get("moe_quant_algo"):
        return "mxfp4"  # DeepSeek-V4 states "fp8" of all but its experts.
    lists = ("ignore", "exclude_modules", "modules_to_not_convert", "exclude")
    left_out = (pattern for name in lists for pattern in quantized.listed(name))
    if layers.content or _name_experts(left_out, config):
        return "bfloat16"
    groups = quantized.section("config_groups")
    if groups.content:
        chosen = _of_groups([groups.section(key) for key in groups.content], config)
        return _by_words(chosen) if chosen else "bfloat16"
    return _by_words(_of_quark(quantized) or quantized)


def _name_experts(patterns: Iterable[object], config: Config) -> bool:
    # The "mlp" of Gemma 4 is a dense one beside the experts.
    in_layer = "gemma4" in str(config.get("model_type"))
    blocks = ["mlp.", "block_sparse_moe.", "mixer.", "ffn.", "feed_forward.", "moe."]
    names = [
        f"model.layers.{config.layers // 2 + one}.{block}experts.0.{matrix}"
        for one in (0, 1)
        for block in ([""] if in_layer else blocks)
        for matrix in ("up_proj", "w1")
    ]
    for pattern in patterns:
        with suppress(re.error):
            of = re.compile(_regex(str(pattern)))
            if any(map(of.match, names)):
                return True
    return False


def _regex(pattern: str) -> str:
    if pattern.startswith("re:"):
        return pattern[3:]
    _, layers, inner = pattern.rpartition("layers.")
    return rf"(.*\.)?{translate(layers + inner)[:-2]}(\..*)?\Z"


def _of_groups(groups: list[Config], config: Config) -> Config | None:
    targets = [group.listed("targets") for group in groups]
    matches = [_name_experts(target, config) for target in targets]
    if not any(matches):
        matches = [not target or "Linear" in target for target in targets]
    return groups[matches.index(True)].section("weights") if any(matches) else None


def _of_quark(quantized: Config) -> Config | None:
    layers = quantized.section("layer_quant_config")
    parts = [layers.section(name) for name in layers.content if EXPERTS.search(name)]
    weights = [*parts, quantized.section("global_quant_config")][0].get("weight")
    last = weights[-1] if isinstance(weights, list) and weights else weights
    return Config(last, quantized.path) if isinstance(last, dict) else None


def _by_words(stated: Config) -> str:
    bits = stated.get("bits") or stated.get("w_bit") or stated.get("num_bits") or ""
    size = stated.get("group_size") or stated.get("q_group_size")
    kind = stated.get("data_type") or stated.get("type") or ""
    text = " ".join(str(stated.get(w) or "") for w in WORDS).lower() + f" {kind}{bits}"
    if "bitsandbytes" in text:
        double = "_double" if stated.get("bnb_4bit_use_double_quant") else ""
        return f"nf4{double}" if stated.get("load_in_4bit") else "int8"
    form = next((name for of, name in FORMATS.items() if re.search(of, text)), "")
    # What packs like GPTQ stores zero points of symmetric weights too.
    gptq = re.search("gptq|round", text)
    if form.startswith("int") or (not form and (gptq or "awq" in text)):
        zeros = stated.get("zero_point") is True or stated.get("symmetric") is False
        return _integer(bits or form[3:], size, zeros or bool(gptq))
    if form == "fp8" and (
        stated.get("weight_block_size") or stated.get("strategy") == "block"
    ):
        return "fp8_block"
    return SCALED.get(f"{form}/{size}", form)


def _integer(bits: object, size: object, zeros: bool) -> str:
    """ "int4_g128", "uint4_g128" with zero points, or "int4" with scales by channel."""
    if not isinstance(size, int) or size <= 0:
        return f"int{bits}"
    return f"{'u' * zeros}int{bits}_g{size}"
