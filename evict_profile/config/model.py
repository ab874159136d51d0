"""The shape of a mixture-of-experts model: all that verification cost depends on.

Latency follows shapes and routing, never the values of the weights, so a model is
measured from a page of numbers and random weights. One YAML file a model in
`configs/models/`; a Hugging Face `config.json` or a GGUF file works too.
"""

from functools import cached_property
from typing import Literal, get_args

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

from evict_profile.cost_model import Shape
from evict_profile.records import Amount, Count
from evict_profile.stats import Floats

BYTES_PER_VALUE: dict[str, float] = {
    "bfloat16": 2,
    "float32": 4,
    "float16": 2,
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
}
"""How weights may be kept; of ggml's quantised types, a block's bytes over its values
(ggml-common.h)."""


Windowed = Literal["sliding", "chunked", "sparse", "compressed"]
Recurrent = Literal["linear", "mamba", "conv"]


class AttentionSpec(Struct, frozen=True):
    """Attention of one layer.

    `gqa` is grouped-query attention; `mla` is DeepSeek's multi-head latent
    attention (arXiv 2412.19437, section 2.1.1), whose cache holds one latent of
    `kv_lora_rank + qk_rope_dim` values a token. With `sliding_window`, every
    `sliding_every`-th layer, from the first, sees only that many past tokens.
    `head_dim` is of values; queries and keys have `qk_head_dim`, 0 for the same, in
    `mla` beside their rotary part.
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
        if self.kind == "mla" and not (self.kv_lora_rank and self.qk_rope_dim):
            raise ValueError("mla needs kv_lora_rank and qk_rope_dim")

    @property
    def cache_values_per_token(self) -> int:
        """Values one token keeps in one layer's KV cache."""
        if self.kind == "mla":
            return self.kv_lora_rank + self.qk_rope_dim
        return self.num_kv_heads * (self.head_dim + (self.qk_head_dim or self.head_dim))

    def weights(self, hidden: int) -> int:
        """Weights of one layer's attention."""
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
    """Layers that do not attend as `AttentionSpec` says: `layers` of one kind.

    `weights` are of one layer's attention, or of what stands in its place; `window` is
    how many past tokens it sees at the most, 0 where a recurrent state stands for them.
    """

    kind: Literal[Windowed, Recurrent, "none"]
    layers: Count
    weights: Amount
    window: Amount = 0


class MoeSpec(Struct, frozen=True):
    """Routed experts of one layer: a gated MLP each, `expert_width` wide.

    `groups` and `groups_kept` describe group-limited routing (DeepSeek-V3): experts
    are picked only from the best groups. `shared_width` is the summed width of the
    experts that every token runs, 0 for none. Experts may work on fewer values than
    the model's: `expert_hidden`, 0 for as many. Those that are not `gated` have two
    matrices, not three.
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

    `mtp_layers` draft, and are no part of `num_layers`. `notes` say with what
    reservation the shape was read.
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
    tied_embeddings: bool = False
    mtp_layers: Amount = 0
    other_layers: tuple[LayerSpec, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in BYTES_PER_VALUE:
            known = ", ".join(BYTES_PER_VALUE)
            raise ValueError(f"dtype {self.dtype!r} is not one of {known}")
        if self.dense_layers >= self.num_layers:
            raise ValueError(
                f"dense_layers {self.dense_layers} must leave at least one of "
                f"num_layers {self.num_layers} for experts"
            )
        others = {other.kind: other.layers for other in self.other_layers}
        if self.dense_layers and not (self.dense_width or "none" in others):
            raise ValueError("dense_width is needed where dense_layers > 0")
        if sum(others.values()) > self.num_layers:
            raise ValueError(f"other_layers are more than num_layers {self.num_layers}")

    @property
    def moe_layers(self) -> int:
        """Layers that hold routed experts."""
        return self.num_layers - self.dense_layers

    @property
    def bytes_per_value(self) -> float:
        """Bytes of one weight or activation."""
        return BYTES_PER_VALUE[self.dtype]

    @property
    def cost_shape(self) -> Shape:
        """What of it the features of a forward depend on."""
        a, total = self.attention, self.num_layers
        others = tuple((o.layers / total, o.window) for o in self.other_layers)
        return Shape(self.moe.top_k, a.sliding_window, a.sliding_every, others)

    @property
    def full_layers(self) -> int:
        """Layers that attend as `attention` says."""
        return self.num_layers - sum(other.layers for other in self.other_layers)

    @property
    def expert_hidden(self) -> int:
        """Values of a token that an expert takes."""
        return self.moe.expert_hidden or self.hidden_size

    @property
    def caveats(self) -> tuple[str, ...]:
        """What marks every cost of the model, whoever measured or composed it."""
        kinds = [f"{o.layers} {o.kind}" for o in self.other_layers if o.kind != "none"]
        if not kinds:
            return self.notes
        states = [o for o in self.other_layers if o.kind in get_args(Recurrent)]
        rollback = "a recurrent state is rolled back at a cost that is not in them"
        said = (
            f"of {self.num_layers} layers {' and '.join(kinds)} do not attend to the "
            "whole context: where nothing better is known they are costed by their "
            "products and the tokens they see, without their own kernels"
        )
        return (said, *[rollback] * bool(states), *self.notes)

    @cached_property
    def bytes_per_expert(self) -> int:
        """Weights of one expert: gate, if it has one, up and down projection."""
        matrices = 3 if self.moe.gated else 2
        values = matrices * self.expert_hidden * self.moe.expert_width
        return round(values * self.bytes_per_value)

    def smallest_union(self) -> int:
        """The union of one token: its `top_k` experts."""
        return self.moe.top_k

    def largest_union(self, tokens: int) -> int:
        """The largest union that `tokens` tokens can activate: min(E, tokens * k)."""
        return min(self.moe.num_experts, tokens * self.moe.top_k)

    def uniform_union(self, tokens: float) -> float:
        """The expected union of uniform routing; see `uniform_union`."""
        return float(uniform_union(self.moe.num_experts, self.moe.top_k, tokens))


def uniform_union(experts: int, top_k: int, tokens: ArrayLike) -> Floats:
    """Expected union if every token drew `top_k` experts uniformly, as `tokens` is.

    E (1 - (1 - k/E)^tokens). Real routing activates fewer: measured over uniform lies
    between 0.55 and 1.03 in public data, so this is a guess, no workload.
    """
    share: Floats = (1.0 - top_k / experts) ** np.asarray(tokens, np.float64)
    return experts * (1.0 - share)
