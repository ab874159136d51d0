"""A tiny Qwen3-MoE and an EAGLE-3 drafter, with a tokenizer.

The target's weights are random, and large enough that greedy replies hardly depend on
the order of a sum, so that engines can be compared token by token. The drafter repeats
the last token, as the replies often do, so that accepted lengths follow from replies.
Shapes are those of tests/sglang/models, but for heads, whose 16 dimensions are too few
for vLLM's attention on a CPU.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.sglang.engine import MODELS

TOKENIZER = Path("examples/small_world/stdlib/tokenizer.json")
END = "<|end|>"
LAYERS = 16
SHARP = 3.0
CHANGED = {"head_dim": 32, "bos_token_id": 0, "eos_token_id": 0}
TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"


def write_models(folder):
    """Write `target` and `draft` below a folder, each as engines load it."""
    target, draft = _config("target", LAYERS), _config("draft", 1)
    generator = torch.Generator().manual_seed(len(target))
    weights = _ones_or(
        _target(target), lambda *shape: 0.2 * torch.randn(*shape, generator=generator)
    )
    _write(folder / "target", target, weights)
    embeddings = weights["model.embed_tokens.weight"]
    _write(folder / "draft", draft, _repeating(draft, embeddings))


def _config(name, layers):
    config = json.loads((MODELS / name / "config.json").read_text())
    return config | CHANGED | {"num_hidden_layers": layers}


def _ones_or(shapes, other):
    """Norms are ones."""
    return {
        name: torch.ones(*shape) if len(shape) == 1 else other(*shape)
        for name, shape in shapes.items()
    }


def _repeating(config, embeddings):
    """A head attends to its own token alone, whose embedding is what is drafted."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    shared = heads // config["num_key_value_heads"]
    weights = _ones_or(_draft(config), torch.zeros)
    keys = torch.eye(hidden)
    groups = keys.view(heads // shared, -1, hidden)
    queries = groups.repeat_interleave(shared, dim=0).flatten(0, 1)
    attention = {"q": SHARP * queries, "k": SHARP * keys, "v": keys}
    for name, values in attention.items():
        weights[f"midlayer.self_attn.{name}_proj.weight"][:, :hidden] = values
    mean = queries.T / shared
    return weights | {
        "midlayer.self_attn.o_proj.weight": mean.contiguous(),
        "lm_head.weight": embeddings.clone(),
    }


def _write(path, config, weights):
    path.mkdir(parents=True)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))
    shutil.copy(TOKENIZER, path)
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": TEMPLATE,
        "model_max_length": config["max_position_embeddings"],
        **dict.fromkeys(("bos_token", "eos_token", "pad_token"), END),
    }
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer))


def _target(config):
    """Shapes of weights by name; one-dimensional ones are norms."""
    hidden, head = config["hidden_size"], config["head_dim"]
    width, vocabulary = config["moe_intermediate_size"], config["vocab_size"]
    shapes = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocabulary, hidden),
    }
    layer = {
        **_attention(config, hidden),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
        "mlp.gate.weight": (config["num_experts"], hidden),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    for expert in range(config["num_experts"]):
        layer |= _mlp(f"mlp.experts.{expert}", hidden, width)
    for number in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{number}.{name}": s for name, s in layer.items()}
    return shapes


def _draft(config):
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    layer = {
        **_attention(config, 2 * hidden),
        **_mlp("mlp", hidden, config["intermediate_size"]),
        **{f"{name}.weight": (hidden,) for name in norms},
    }
    return {
        **{f"midlayer.{name}": shape for name, shape in layer.items()},
        "norm.weight": (hidden,),
        "fc.weight": (hidden, 3 * hidden),
        "lm_head.weight": (vocabulary, hidden),
    }


def _attention(config, inputs):
    head, hidden = config["head_dim"], config["hidden_size"]
    queries = config["num_attention_heads"] * head
    keys = config["num_key_value_heads"] * head
    return {
        "self_attn.q_proj.weight": (queries, inputs),
        "self_attn.k_proj.weight": (keys, inputs),
        "self_attn.v_proj.weight": (keys, inputs),
        "self_attn.o_proj.weight": (hidden, queries),
    }


def _mlp(prefix, hidden, width):
    return {
        f"{prefix}.gate_proj.weight": (width, hidden),
        f"{prefix}.up_proj.weight": (width, hidden),
        f"{prefix}.down_proj.weight": (hidden, width),
    }
