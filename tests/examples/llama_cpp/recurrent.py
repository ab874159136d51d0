"""A GGUF whose first layer has a recurrent state in place of attention."""

from pathlib import Path

import numpy as np
from gguf import ExpertGatingFuncType, GGUFWriter

from examples.llama_cpp import toy
from examples.llama_cpp.toy import ToyShape, put


def write_recurrent_toy(path: Path) -> None:
    """A model of two layers with routed experts, whose first is a short convolution in
    place of attention: its state cannot be cut (architecture lfm2moe)."""
    rng, shape, kept = np.random.default_rng(0), ToyShape(), 3
    writer, hidden = GGUFWriter(path, "lfm2moe"), shape.hidden
    toy.add_sizes(
        writer,
        context_length=40960, embedding_length=hidden, block_count=2,
        feed_forward_length=shape.width * shape.top_k,
        expert_feed_forward_length=shape.width,
        head_count=shape.heads, head_count_kv=[0, shape.heads],
        layer_norm_rms_eps=1e-6, rope_freq_base=1e6,
        expert_count=shape.experts, expert_used_count=shape.top_k,
        expert_gating_func=ExpertGatingFuncType.SIGMOID, leading_dense_block_count=0,
        shortconv_l_cache=kept, vocab_size=shape.vocab,
    )  # fmt: skip
    toy.add_byte_vocabulary(writer, shape.vocab)
    put(writer, "token_embd", rng.standard_normal((shape.vocab, hidden)))
    put(writer, "token_embd_norm", np.ones(hidden))
    for layer in range(2):
        start, own = f"blk.{layer}", list(toy.layer_weights(shape, rng))
        if layer == 0:
            own = [each for each in own if not each[0].startswith(("attn_q", "attn_k"))]
            own = [each for each in own if each[0] not in ("attn_v", "attn_output")]
            for name, size in (("in_proj", 3 * hidden), ("out_proj", hidden)):
                weights = rng.standard_normal((size, hidden)) / hidden**0.5
                put(writer, f"{start}.shortconv.{name}", weights)
            convolution = rng.standard_normal((hidden, kept))
            put(writer, f"{start}.shortconv.conv", convolution)
        for name, weights, kind in own:
            put(writer, f"{start}.{name}", weights, kind)
        router = rng.standard_normal((shape.experts, hidden))
        put(writer, f"{start}.ffn_gate_inp", router)
        writer.add_tensor(
            f"{start}.exp_probs_b.bias", np.zeros(shape.experts, np.float32)
        )
    toy.finish(writer)
