"""Bytes and operations of one verification forward: the floor under any latency.

A layer must read the weights it uses once (every activated expert, whatever the number
of its tokens), read the KV cache of every request, and multiply each token with its
top-k experts. Bytes over bandwidth and operations over rate bound its time from
below (Williams et al., "Roofline", 2009). The slope of time in U is bytes per
expert over bandwidth: a table with another slope does not measure expert weights.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from evict_profile.config.model import ModelSpec

if TYPE_CHECKING:
    from evict_profile.cells import Cell

SLOPE_RANGE = (0.3, 1.05)
"""What the slope in U may imply, as a share of the measured copy bandwidth. Public
one-layer data of four GPU generations lie between 0.75 and 0.92 of the peak."""


@dataclass(frozen=True)
class Work:
    bytes_moved: float
    flops: float

    def roofline_us(self, bandwidth_gbps: float, tflops: float) -> float:
        """max(bytes / bandwidth, operations / rate), in microseconds."""
        return max(self.bytes_moved / bandwidth_gbps / 1e3, self.flops / tflops / 1e6)


def layer_bytes(model: ModelSpec) -> int:
    experts = model.moe.num_experts * model.bytes_per_expert
    return experts + round(model.common_weights * model.bytes_per_value)


def seen_context(model: ModelSpec, context: float) -> float:
    """Past tokens that a layer attends to, mean over full and windowed layers."""
    return float(model.cost_shape.seen_context(np.array([context]))[0])


def attention_flops_per_pair(model: ModelSpec) -> float:
    """Operations for one query token and one cached one: scores, then values.

    Absorbed latent attention scores against the whole latent, and mixes its body.
    """
    a = model.attention
    if a.kind == "mla":
        return 2.0 * a.num_heads * (2 * a.kv_lora_rank + a.qk_rope_dim)
    return 4.0 * a.num_heads * a.head_dim


def layer_work(model: ModelSpec, cell: "Cell", union: float | None = None) -> Work:
    """Work of one MoE layer for a cell; a naturally routed one needs `union`."""
    activated = float(cell.union) if union is None else union
    past = cell.batch * seen_context(model, cell.context)
    cache = past * model.attention.cache_values_per_token * model.bytes_per_value
    weights = model.common_weights * model.bytes_per_value
    per_token = model.common_weights + model.moe.top_k * model.weights_per_expert
    scores = attention_flops_per_pair(model) * cell.width * past
    return Work(
        bytes_moved=weights + activated * model.bytes_per_expert + cache,
        flops=2.0 * per_token * cell.tokens + scores,
    )


def non_moe_work(model: ModelSpec, cell: "Cell") -> Work:
    weights = model.non_moe_weights
    past = cell.batch * seen_context(model, cell.context) * model.dense_layers
    cache = past * model.attention.cache_values_per_token * model.bytes_per_value
    return Work(
        bytes_moved=weights * model.bytes_per_value + cache,
        flops=2.0 * weights * cell.tokens,
    )
