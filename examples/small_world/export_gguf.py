"""The trained small world as a GGUF, as it is or padded with zeros to a large one.

    python -m examples.small_world.export_gguf examples/small_world/stdlib world.gguf
    python -m examples.small_world.export_gguf examples/small_world/stdlib large.gguf \
        --dtype Q8_0 --hidden 1024 --width 512

llama.cpp's architecture "llama" with experts has the same sums: norms whose weights
are one, a softmax router whose top-k shares are renormalised, gated SiLU experts. Its
rotary embedding turns neighbours where ours turns halves, so rows of queries and keys
change places.

Padded, the model says the same at a large model's cost, with real routing. A norm over
H values of which D are not zero is sqrt(H / D) too large, so its weight is
sqrt(D / H), and its epsilon D / H as large.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from safetensors.numpy import load_file

from examples.llama_cpp.toy import add_sizes, add_vocabulary, finish, put
from examples.small_world.engine.checkpoint import ABOUT, WEIGHTS
from examples.small_world.engine.drafter import TargetShape

EPSILON = float(np.finfo(np.float32).eps)
"""Of torch's norm, where none is given."""


def write_world(
    folder: Path, path: Path, hidden: int = 0, width: int = 0, dtype: str = "F32"
) -> None:
    """Write a world's target as a GGUF.

    Args:
        hidden, width: sizes to pad to; 0 keeps the world's.
        dtype: ggml's name of the type of matrices; router and embedding stay F32.
    """
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    shape = TargetShape(**about["shape"])
    weights = {
        name.removeprefix("target."): values.astype(np.float32)
        for name, values in load_file(folder / WEIGHTS).items()
    }
    hidden, width = hidden or shape.hidden, width or shape.expert_width
    writer = GGUFWriter(path, "llama")
    add_sizes(
        writer,
        context_length=8192,
        embedding_length=hidden,
        block_count=shape.layers,
        feed_forward_length=width,
        head_count=shape.heads,
        head_count_kv=shape.key_heads,
        key_length=shape.head_dim,
        value_length=shape.head_dim,
        rope_dimension_count=shape.head_dim,
        rope_freq_base=1e4,
        layer_norm_rms_eps=EPSILON * shape.hidden / hidden,
        expert_count=shape.experts,
        expert_used_count=shape.top_k,
        vocab_size=shape.vocab,
    )
    _add_tokenizer(writer, folder)
    ones = np.full(hidden, (shape.hidden / hidden) ** 0.5)
    put(writer, "output_norm", ones)
    put(writer, "token_embd", _padded(weights["embedding"], shape.vocab, hidden))
    put(writer, "output", _padded(weights["head"], shape.vocab, hidden), dtype)
    for layer in range(shape.layers):
        name = f"layers.{layer}."
        own = {k.removeprefix(name): v for k, v in weights.items() if name in k}
        _put_layer(writer, f"blk.{layer}.", own, shape, (hidden, width, dtype))
        for norm in ("attn_norm", "ffn_norm"):
            put(writer, f"blk.{layer}.{norm}", ones)
    finish(writer)


def _put_layer(
    writer: GGUFWriter,
    prefix: str,
    own: dict[str, np.ndarray],
    shape: TargetShape,
    padding: tuple[int, int, str],
) -> None:
    hidden, width, dtype = padding
    heads, key_heads = shape.heads * shape.head_dim, shape.key_heads * shape.head_dim
    query, key, value = np.split(own["attention.qkv"], [heads, heads + key_heads])
    gate, up = np.split(own["experts.gate_up"], 2, axis=1)
    for name, matrix, rows, columns in (
        ("attn_q", _neighbours(query, shape.heads), heads, hidden),
        ("attn_k", _neighbours(key, shape.key_heads), key_heads, hidden),
        ("attn_v", value, key_heads, hidden),
        ("attn_output", own["attention.out"], hidden, heads),
        ("ffn_gate_exps", gate, width, hidden),
        ("ffn_up_exps", up, width, hidden),
        ("ffn_down_exps", own["experts.down"], hidden, width),
    ):
        put(writer, prefix + name, _padded(matrix, rows, columns), dtype)
    router = _padded(own["experts.router"], shape.experts, hidden)
    put(writer, f"{prefix}ffn_gate_inp", router)


def _padded(matrix: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """The matrix, or each of several, with zeros behind it."""
    more = (rows - matrix.shape[-2], columns - matrix.shape[-1])
    kept = [(0, 0)] * (matrix.ndim - 2)
    return np.pad(matrix, [*kept, (0, more[0]), (0, more[1])])


def _neighbours(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head whose halves turn together, so that neighbours do."""
    halves = rows.reshape(heads, 2, -1, rows.shape[-1])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _add_tokenizer(writer: GGUFWriter, folder: Path) -> None:
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    model = json.loads(text)["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    add_vocabulary(writer, tokens, merges, "gpt-2")


def main() -> None:
    """Convert as the arguments say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("world", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--hidden", type=int, default=0)
    parser.add_argument("--width", type=int, default=0)
    parser.add_argument("--dtype", default="F32")
    asked = parser.parse_args()
    if not (asked.world / "world.json").is_file():
        parser.error(f"{asked.world}: holds no world.json; give a trained world")
    write_world(asked.world, asked.out, asked.hidden, asked.width, asked.dtype)


if __name__ == "__main__":
    main()
