"""The shape of a mixture-of-experts model.

Latency depends on shapes and routing, not on weight values. `configs/models/` has one
YAML per model; a Hugging Face `config.json` works too.
"""

from collections.abc import Collection
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

from evict_profile.cost_model import CostShape
from evict_profile.records import Amount, Count
from evict_profile.stats import Floats

BYTES_PER_VALUE: dict[str, float] = {
    "bfloat16": 2,
    "float32": 4,
    "float16": 2,
    "fp8": 1,
    "fp8_block": 1 + 4 / 128**2,
    "q8_0": 34 / 32,
    "q6_k": 210 / 256,
    "q5_k": 176 / 256,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_k": 144 / 256,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "q3_k": 110 / 256,
    "q2_k": 84 / 256,
    "iq4_xs": 136 / 256,
    "iq4_nl": 18 / 32,
    "iq3_s": 110 / 256,
    "iq3_xxs": 98 / 256,
    "iq2_s": 82 / 256,
    "iq2_xs": 74 / 256,
    "iq2_xxs": 66 / 256,
    "iq1_m": 56 / 256,
    "iq1_s": 50 / 256,
    "mxfp4": 17 / 32,
    "mxfp8": 33 / 32,
    "nvfp4": 9 / 16,
    "nf4": (4 + 32 / 64) / 8,
    "nf4_double": (4 + 8 / 64 + 32 / (64 * 256)) / 8,
    "int4": 4 / 8,
    "int8": 1,
}
"""Bytes per weight; of ggml's types a block's bytes over its values (ggml-common.h).

mxfp4 and mxfp8 have a scale of 8 bits per 32 values, nvfp4 one of 8 per 16. nf4 has one
of 32 per 64, or of 8, with another of 32 per 256 of those. One scale per row or matrix
is left out.
"""
BYTES_PER_VALUE |= {
    f"{'u' * zeros}int{bits}_g{group}": (bits + (16 + zeros * bits) / group) / 8
    for bits in (2, 3, 4, 8)
    for group in (32, 64, 128)
    for zeros in (0, 1)
}
"""A scale of 16 bits for each group; with "uint" a zero point as wide as a weight."""

Windowed = Literal["sliding", "chunked", "sparse", "csa", "hca"]
Recurrent = Literal["linear", "mamba", "conv"]
StateRule = Literal["", "gated_delta", "kda", "lightning"]
"""How a linear layer updates its state."""


class AttentionSpec(Struct, frozen=True):
    """Attention of one layer.

    `mla` is DeepSeek's multi-head latent attention (arXiv 2412.19437, section 2.1.1),
    whose cache holds `kv_lora_rank + qk_rope_dim` values per token. With
    `sliding_window`, every `sliding_every`-th layer, from the first, sees only that
    many past tokens. `head_dim` is of values; `qk_head_dim` of queries and keys (0: the
    same), in `mla` without the rotary part.
    """

    num_heads: Count
    num_kv_heads: Count
    head_dim: Count
    kind: Literal["gqa", "mla"] = "gqa"
    qk_norm: bool = False
    sliding_window: Amount = 0
    sliding_every: Count = 2
    q_lora_rank: Amount = 0
    kv_lora_rank: Amount = 0
    qk_rope_dim: Amount = 0
    qk_head_dim: Amount = 0
    output_gate: bool = False

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} must be a multiple of "
                f"num_kv_heads {self.num_kv_heads}"
            )
        if self.kind == "mla" and not self.kv_lora_rank:
            raise ValueError("mla needs kv_lora_rank")

    @property
    def cache_values_per_token(self) -> int:
        if self.kind == "mla":
            return self.kv_lora_rank + self.qk_rope_dim
        return self.num_kv_heads * (self.head_dim + (self.qk_head_dim or self.head_dim))

    def weights(self, hidden: int) -> int:
        values = self.num_heads * self.head_dim
        keys = self.qk_head_dim or self.head_dim
        gate = hidden * values if self.output_gate else 0
        if self.kind == "mla":
            query = self.num_heads * (keys + self.qk_rope_dim)
            rank = self.q_lora_rank
            query = rank * (hidden + query) if rank else hidden * query
            latent = hidden * (self.kv_lora_rank + self.qk_rope_dim)
            up = self.kv_lora_rank * (self.num_heads * keys + values)
            return query + latent + up + values * hidden + gate
        cached = self.cache_values_per_token
        return hidden * (self.num_heads * keys + cached + values) + gate


class LayerSpec(Struct, frozen=True):
    """`layers` of one kind that do not attend as `AttentionSpec` states.

    `weights` are of one layer's attention or its replacement; `window` is the most past
    tokens it sees, 0 for a recurrent state, which holds `state` values. `csa` and `hca`
    are DeepSeek-V4's compressed sparse and heavily compressed attention.
    """

    kind: Literal[Windowed, Recurrent, "none"]
    layers: Count
    weights: Amount
    window: Amount = 0
    rule: StateRule = ""
    state: Amount = 0


class MoeSpec(Struct, frozen=True):
    """Routed experts of one layer: an MLP each, `expert_width` wide.

    `shared_width` is the summed width of shared experts; `expert_hidden` the experts'
    input width (0: the model's). Experts that are not `gated` have two matrices.
    """

    num_experts: Count
    top_k: Count
    expert_width: Count
    router: Literal["softmax", "sigmoid"] = "softmax"
    shared_width: Amount = 0
    groups: Count = 1
    groups_kept: Count = 1
    expert_hidden: Amount = 0
    gated: bool = True

    @property
    def matrices(self) -> int:
        return 3 if self.gated else 2

    def __post_init__(self) -> None:
        if self.top_k > self.num_experts:
            raise ValueError(
                f"top_k {self.top_k} exceeds num_experts {self.num_experts}"
            )
        if self.num_experts % self.groups:
            raise ValueError(
                f"num_experts {self.num_experts} does not divide into "
                f"groups {self.groups}"
            )
        reachable = self.num_experts // self.groups * self.groups_kept
        if self.groups_kept > self.groups or self.top_k > reachable:
            raise ValueError(
                f"groups_kept {self.groups_kept} of groups {self.groups} leaves "
                f"{reachable} experts for top_k {self.top_k}"
            )


class ModelSpec(Struct, frozen=True, dict=True):
    """A model's shape. The first `dense_layers` of `num_layers` hold no experts.

    `mtp_layers` draft and are not in `num_layers`. `residual_streams` above one are
    mixed around every layer by hyper-connections.
    """

    name: str
    source: str
    hidden_size: Count
    num_layers: Count
    vocab_size: Count
    attention: AttentionSpec
    moe: MoeSpec
    dense_layers: Amount = 0
    dense_width: Amount = 0
    dtype: str = "bfloat16"
    checkpoint_dtype: str = "bfloat16"
    tied_embeddings: bool = False
    mtp_layers: Amount = 0
    residual_streams: Count = 1
    other_layers: tuple[LayerSpec, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for dtype in (self.dtype, self.checkpoint_dtype):
            if dtype not in BYTES_PER_VALUE:
                names = ", ".join(BYTES_PER_VALUE)
                raise ValueError(f"dtype {dtype!r} is not one of {names}")
        if self.dense_layers >= self.num_layers:
            raise ValueError(
                f"dense_layers {self.dense_layers} must leave at least one of "
                f"num_layers {self.num_layers} for experts"
            )
        kinds = {other.kind for other in self.other_layers}
        if self.dense_layers and not (self.dense_width or "none" in kinds):
            raise ValueError("dense_width is needed where dense_layers > 0")
        if self.full_layers < 0:
            raise ValueError(f"other_layers are more than num_layers {self.num_layers}")

    @property
    def moe_layers(self) -> int:
        return self.num_layers - self.dense_layers

    @property
    def bytes_per_value(self) -> float:
        return BYTES_PER_VALUE[self.dtype]

    @property
    def stored_dtype(self) -> str:
        stored = self.checkpoint_dtype
        return self.dtype if stored == "bfloat16" else stored

    @property
    def cost_shape(self) -> CostShape:
        a, total = self.attention, self.num_layers
        others = tuple((o.layers / total, o.window) for o in self.other_layers)
        return CostShape(self.moe.top_k, a.sliding_window, a.sliding_every, others)

    @property
    def full_layers(self) -> int:
        return self.num_layers - sum(other.layers for other in self.other_layers)

    @property
    def expert_hidden(self) -> int:
        return self.moe.expert_hidden or self.hidden_size

    def caveats(self, without_kernels: Collection[str] | None) -> tuple[str, ...]:
        """Caveats of costs; kinds of layers may lack their kernels (None: all do)."""
        others = [other for other in self.other_layers if other.kind != "none"]
        lacking = [
            f"{other.layers} {other.kind}"
            for other in others
            if without_kernels is None or other.kind in without_kernels
        ]
        caveat = (
            f"of {self.num_layers} layers {' and '.join(lacking)} are costed by their "
            "products and bytes, without their own kernels"
        )
        recurs = any(other.kind in get_args(Recurrent) for other in others)
        rollback = "a recurrent state is rolled back at a cost that is not in them"
        return (*[caveat] * bool(lacking), *[rollback] * recurs, *self.notes)

    @property
    def weights_per_expert(self) -> int:
        return self.moe.matrices * self.expert_hidden * self.moe.expert_width

    @cached_property
    def bytes_per_expert(self) -> int:
        return round(self.weights_per_expert * self.bytes_per_value)

    @property
    def attention_weights(self) -> int:
        weights = self.attention.weights(self.hidden_size)
        others = sum(other.layers * other.weights for other in self.other_layers)
        return round((self.full_layers * weights + others) / self.num_layers)

    @property
    def common_weights(self) -> int:
        """Weights of one MoE layer that every token uses."""
        moe, hidden = self.moe, self.hidden_size
        router = hidden * (moe.num_experts + 2 * moe.expert_hidden)
        shared = moe.matrices * hidden * moe.shared_width
        return self.attention_weights + router + shared

    @property
    def non_moe_weights(self) -> int:
        """Weights outside MoE layers that each forward reads: dense layers, head."""
        dense = self.attention_weights + 3 * self.hidden_size * self.dense_width
        return self.vocab_size * self.hidden_size + self.dense_layers * dense

    @property
    def total_parameters(self) -> int:
        """Parameters without norms, biases and what only drafts."""
        return self._parameters(self.moe.num_experts)

    @property
    def active_parameters(self) -> int:
        return self._parameters(self.moe.top_k)

    def _parameters(self, experts: int) -> int:
        layer = self.common_weights + experts * self.weights_per_expert
        embedding = 0 if self.tied_embeddings else self.vocab_size * self.hidden_size
        return self.moe_layers * layer + self.non_moe_weights + embedding

    def smallest_union(self) -> int:
        return self.moe.top_k

    def largest_union(self, tokens: int) -> int:
        return min(self.moe.num_experts, tokens * self.moe.top_k)

    def uniform_union(self, tokens: float) -> float:
        return float(uniform_union(self.moe.num_experts, self.moe.top_k, tokens))


def uniform_union(experts: int, top_k: int, tokens: ArrayLike) -> Floats:
    """Expected union under uniform routing, shaped as `tokens`.

    E (1 - (1 - k/E)^tokens). Measured over uniform is 0.55 to 1.03 in public data.
    """
    share: Floats = (1.0 - top_k / experts) ** np.asarray(tokens, np.float64)
    return experts * (1.0 - share)
