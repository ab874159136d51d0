"""The model that SGLang loads, as a folder that it can read.

Three ways, in this order: the folder that the sweep names, with weights or without; the
folder of the config.json that the toolkit's model came from; or a config.json written
from the toolkit's model, where a Qwen3-MoE config says exactly that. Without weights,
SGLang fills the tensors itself: latency follows shapes and routing, not values.
"""

import json
from pathlib import Path
from typing import Any

from runners.protocol import Message, Refusal

CONFIG = "config.json"
WEIGHTS = ("*.safetensors", "*.bin", "*.pt")
LONGEST = 65536
"""Positions that a written config allows."""

FP8_BLOCK = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
"""What a config.json says of FP8 weights, as Qwen3's and DeepSeek's are published."""

FEWEST_LAYERS = 8
"""EAGLE-3 hands its head three layers' states, which coincide in a shallower target."""

HEAD_WIDTH = 4
"""Width of a written head's dense layer, in hidden sizes, as in published heads."""


def model_folder(model: Message, named: str, scratch: Path) -> Path:
    """The folder to load the target from."""
    if named:
        return _with_config(named, "engine.model")
    source = Path(model["source"])
    if source.name.endswith(".json") and source.is_file():
        return source.resolve().parent
    return write_config(scratch / "target", target_config(model))


def draft_folder(target: Path, named: str, scratch: Path) -> Path:
    """The folder of the EAGLE-3 head: named, or a written one as large as usual."""
    if named:
        return _with_config(named, "engine.draft")
    shape = json.loads((target / CONFIG).read_text(encoding="utf-8"))
    return write_config(scratch / "draft", head_config(shape))


def load_format(folder: Path) -> str:
    """SGLang's load format: the weights of a folder, or its own filling."""
    found = any(any(folder.glob(pattern)) for pattern in WEIGHTS)
    return "auto" if found else "dummy"


def activations(model: Message) -> str:
    """The type of activations, which with quantised weights is bfloat16."""
    own = str(model["dtype"])
    return own if own in ("float16", "float32") else "bfloat16"


def write_config(folder: Path, content: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(json.dumps(content, indent=1), encoding="utf-8")
    return folder


def target_config(model: Message) -> dict[str, Any]:
    """The config.json of a Qwen3-MoE of the toolkit's shape."""
    if other := unlike_qwen3(model):
        raise Refusal(
            "infeasible",
            f"model '{model['name']}' has {', '.join(other)}, which no Qwen3-MoE "
            "config can say; give its own config.json as --model, or name a folder "
            "with one as 'model' in the sweep's 'sglang' section",
        )
    attention, moe = model["attention"], model["moe"]
    in_blocks = model["dtype"] == "fp8_block"
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        **_common(model["hidden_size"], model["vocab_size"], activations(model)),
        **({"quantization_config": FP8_BLOCK} if in_blocks else {}),
        "num_hidden_layers": model["num_layers"],
        "num_attention_heads": attention["num_heads"],
        "num_key_value_heads": attention["num_kv_heads"],
        "head_dim": attention["head_dim"],
        "intermediate_size": model["dense_width"] or moe["expert_width"],
        "mlp_only_layers": list(range(model["dense_layers"])),
        "decoder_sparse_step": 1,
        "num_experts": moe["num_experts"],
        "num_experts_per_tok": moe["top_k"],
        "moe_intermediate_size": moe["expert_width"],
        "norm_topk_prob": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": model["num_layers"],
        "router_aux_loss_coef": 0.0,
        "output_router_logits": False,
    }


def unlike_qwen3(model: Message) -> list[str]:
    """Properties of a shape that Qwen3-MoE does not have."""
    attention, moe = model["attention"], model["moe"]
    has = {
        f"{attention['kind']} attention": attention["kind"] != "gqa",
        "no norm of queries and keys": not attention["qk_norm"],
        "a sliding window": bool(attention["sliding_window"]),
        f"a {moe['router']} router": moe["router"] != "softmax",
        "shared experts": bool(moe["shared_width"]),
        "expert groups": moe["groups"] != 1,
        "layers of other kinds": bool(model["other_layers"]),
    }
    return [name for name, present in has.items() if present]


def head_config(target: dict[str, Any]) -> dict[str, Any]:
    """The config.json of an EAGLE-3 head for a target's config: one Llama layer."""
    hidden, heads = target["hidden_size"], target["num_attention_heads"]
    dtype = target.get("dtype") or target.get("torch_dtype") or "bfloat16"
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **_common(hidden, target["vocab_size"], dtype),
        "draft_vocab_size": min(32_000, target["vocab_size"]),
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": target["num_key_value_heads"],
        "head_dim": target.get("head_dim") or hidden // heads,
        "intermediate_size": HEAD_WIDTH * hidden,
        "mlp_bias": False,
    }


def _common(hidden: int, vocab: int, dtype: str) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "vocab_size": vocab,
        "torch_dtype": dtype,
        "hidden_act": "silu",
        "max_position_embeddings": LONGEST,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _with_config(named: str, option: str) -> Path:
    folder = Path(named)
    if not (folder / CONFIG).is_file():
        raise Refusal(
            "infeasible",
            f"{option} '{named}' is no folder with a config.json; give one, with "
            "weights beside it or without",
        )
    return folder.resolve()
