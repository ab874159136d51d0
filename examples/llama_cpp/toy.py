"""GGUF files whose routing is known: token ids decide which experts run.

A token's embedding is a sum of the directions of its experts, and a router reads each
direction for one expert, another in every layer. Directions are orthonormal and the
embedding outweighs what the layers add, so that token t, below the number of experts
E, activates the experts of the window t .. t + k - 1 (mod E).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants


@dataclass(frozen=True)
class ToyShape:
    """Sizes of a model of the architecture qwen3moe, and the type of its experts.

    `scale` is that of the embedding: at 1, layers sent a quarter of the tokens to other
    experts than those meant; from 10 on, none.
    """

    hidden: int = 64
    layers: int = 2
    heads: int = 2
    head_dim: int = 32
    experts: int = 16
    top_k: int = 4
    width: int = 32
    vocab: int = 512
    kind: str = "F32"
    scale: float = 30.0


def write_toy(path: Path, shape: ToyShape, seed: int = 0) -> np.ndarray:
    """Write the file; returns the expert of each direction, int64 [layers, experts].

    Token t activates `experts_of[layer][(t + arange(k)) % experts]`.
    """
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((shape.hidden, shape.experts)))[0].T
    orders = np.stack([rng.permutation(shape.experts) for _ in range(shape.layers)])
    writer = GGUFWriter(path, "qwen3moe")
    add_sizes(
        writer,
        context_length=40960,
        embedding_length=shape.hidden,
        block_count=shape.layers,
        feed_forward_length=shape.width * shape.top_k,
        expert_feed_forward_length=shape.width,
        head_count=shape.heads,
        head_count_kv=shape.heads,
        key_length=shape.head_dim,
        value_length=shape.head_dim,
        layer_norm_rms_eps=1e-6,
        rope_freq_base=1e6,
        expert_count=shape.experts,
        expert_used_count=shape.top_k,
        vocab_size=shape.vocab,
    )
    add_byte_vocabulary(writer, shape.vocab)
    embedding = rng.standard_normal((shape.vocab, shape.hidden))
    embedding *= shape.scale * np.sqrt(shape.top_k / shape.hidden)
    for token in range(shape.experts):
        window = (token + np.arange(shape.top_k)) % shape.experts
        shares = 1.0 + 0.2 * rng.random(shape.top_k)  # no ties among the chosen
        embedding[token] = shape.scale * shares @ basis[window]
    put(writer, "token_embd", embedding)
    put(writer, "output_norm", np.ones(shape.hidden))
    put(writer, "output", 0.02 * rng.standard_normal((shape.vocab, shape.hidden)))
    for layer, order in enumerate(orders):
        router = np.empty_like(basis)
        router[order] = basis
        put(writer, f"blk.{layer}.ffn_gate_inp", router)
        for name, weights, kind in layer_weights(shape, rng):
            put(writer, f"blk.{layer}.{name}", weights, kind)
    finish(writer)
    return orders


def layer_weights(
    shape: ToyShape, rng: np.random.Generator
) -> Iterator[tuple[str, np.ndarray, str]]:
    """Name, values and type of each tensor of a layer, but its router."""
    rows, hidden = shape.heads * shape.head_dim, shape.hidden
    for name in ("attn_norm", "ffn_norm"):
        yield name, np.ones(hidden), "F32"
    for name in ("attn_q_norm", "attn_k_norm"):
        yield name, np.ones(shape.head_dim), "F32"
    for name in ("attn_q", "attn_k", "attn_v"):
        yield name, rng.standard_normal((rows, hidden)) / hidden**0.5, "F32"
    yield "attn_output", rng.standard_normal((hidden, rows)) / rows**0.5, "F32"
    for name, size in (
        ("ffn_gate_exps", (shape.width, hidden)),
        ("ffn_up_exps", (shape.width, hidden)),
        ("ffn_down_exps", (hidden, shape.width)),
    ):
        one = rng.standard_normal(size, dtype=np.float32) / size[1] ** 0.5
        turned = [np.roll(one, expert, axis=0) for expert in range(shape.experts)]
        yield name, np.stack(turned), shape.kind


def add_sizes(writer: GGUFWriter, **sizes: Any) -> None:
    for name, value in sizes.items():
        getattr(writer, f"add_{name}")(value)


def add_byte_vocabulary(writer: GGUFWriter, size: int) -> None:
    """A token for each byte, then unused ones."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = (byte for byte in range(256) if byte not in shown)
    letters = {byte: chr(byte) for byte in shown}
    letters |= {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    tokens = [letters[byte] for byte in range(256)]
    add_vocabulary(
        writer, [*tokens, *(f"<{i}>" for i in range(256, size))], ["a b"], "qwen2"
    )


def add_vocabulary(
    writer: GGUFWriter, tokens: list[str], merges: list[str], split: str
) -> None:
    """A byte-level vocabulary, whose first token is special."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    writer.add_token_types([3, *[1] * (len(tokens) - 1)])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)


def put(writer: GGUFWriter, name: str, weights: np.ndarray, kind: str = "F32") -> None:
    values = np.ascontiguousarray(weights, np.float32)
    if kind == "F32":
        writer.add_tensor(f"{name}.weight", values)
        return
    dtype = GGMLQuantizationType[kind]
    writer.add_tensor(f"{name}.weight", quants.quantize(values, dtype), raw_dtype=dtype)


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
