"""The target, verifying: one forward over the draft trees of a batch.

The layers are those of runners/torch_moe, with the trained weights; attention is laid
out anew, because there all requests share one tree and one context.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from examples.small_world.engine.checkpoint import Checkpoint
from examples.small_world.engine.drafter import feature_layers, norm
from examples.small_world.engine.layout import (
    CacheSlot,
    KVCache,
    Layout,
    attend_ragged,
    make_layout,
)
from runners.torch_moe.attention import Attention, rotate
from runners.torch_moe.model import Experts, MoeLayer

Routing = Callable[[int, MoeLayer, Tensor], tuple[Tensor, Tensor]]
"""Experts and weights, [T, k] each, of the tokens x [T, D] of a layer."""


def own_routing(index: int, layer: MoeLayer, x: Tensor) -> tuple[Tensor, Tensor]:
    """The model's own."""
    return layer.router(x)


def forced_routing(routes: Tensor) -> Routing:
    """These experts, [layers, T, k], at the weights that the router gives its own."""
    return lambda index, layer, x: (routes[index], layer.router(x)[1])


@dataclass(frozen=True)
class Verified:
    """For T tokens: logits [T, vocab], the residual streams [T, D] that the drafter
    reads, low to high, and the experts that ran, int64 [layers, T, k]."""

    logits: Tensor
    streams: list[Tensor]
    routes: Tensor


class Verifier:
    """The target's layers and the cache of its requests."""

    def __init__(self, checkpoint: Checkpoint, slots: int, room: int) -> None:
        shape, self.stack = checkpoint.shape, checkpoint.stack
        self.shape = shape
        self.device = device = self.stack.head.device
        self.cache = KVCache(
            shape.layers, shape.key_heads, slots, room, shape.head_dim, device
        )
        self.experts = [ActivatedExperts(layer.experts) for layer in self.stack.moe]
        self.read_behind = feature_layers(shape.layers)

    def read(self, ids: Sequence[int] | Tensor, slot: int = 0) -> Verified:
        """Run a text [T] from its beginning, in one slot."""
        layout = make_layout([CacheSlot.chain(slot, 0, len(ids))], self.cache)
        return self.verify(torch.as_tensor(ids, device=self.device), layout)

    def verify(
        self, ids: Tensor, layout: Layout, routing: Routing = own_routing
    ) -> Verified:
        """Run token ids [T]."""
        x = F.embedding(ids, self.stack.embedding)
        streams, routes = [], []
        for index in range(self.shape.layers):
            x, chosen = self.run_layer(index, x, layout, routing)
            routes.append(chosen)
            if index in self.read_behind:
                streams.append(x)
        logits = F.linear(norm(x), self.stack.head)
        return Verified(logits, streams, torch.stack(routes))

    def run_layer(
        self, index: int, x: Tensor, layout: Layout, routing: Routing = own_routing
    ) -> tuple[Tensor, Tensor]:
        """One layer over x [T, D]; also the experts [T, k] that ran."""
        layer: MoeLayer = self.stack.moe[index]
        x = x + self._attention(index, layer.attention, norm(x), layout)
        normed = norm(x)
        chosen, weights = routing(index, layer, normed)
        return x + self.experts[index](normed, chosen, weights), chosen

    def _attention(
        self, index: int, attention: Attention, x: Tensor, layout: Layout
    ) -> Tensor:
        shape = self.shape
        rotated = shape.heads + shape.key_heads
        rows = F.linear(x, attention.qkv).unflatten(-1, (-1, shape.head_dim))
        qk, v = rows.split([rotated, shape.key_heads], dim=1)
        # One rotation for both: at this size it is calls that cost.
        q, k = rotate(qk, layout.angles).split([shape.heads, shape.key_heads], dim=1)
        self.cache.write(index, layout, k, v)
        out = attend_ragged(q, *self.cache.read(index, layout), layout)
        return F.linear(out, attention.out)


class ActivatedExperts:
    """The experts of one layer, one at a time: a product for each activated expert.

    Grouped kernels visit every group. With experts as small as the small world's that
    visit is most of their time, so that it would not follow the union: at 16 tokens 4
    and 64 experts took the same. A loop over activated experts costs its calls, one
    expert after the other, as CPU engines run them. A GPU has a grouped kernel for bf16
    alone; in fp32 `grouped_mm` is a loop there as well, over all experts.
    """

    def __init__(self, experts: Experts) -> None:
        self.gate_up = [expert.t() for expert in experts.gate_up]
        self.down = [expert.t() for expert in experts.down]

    def __call__(self, x: Tensor, routes: Tensor, weights: Tensor) -> Tensor:
        """Mix of each token's experts; x [T, D], routes and weights [T, k]."""
        top_k = routes.shape[1]
        by_expert, slots = routes.view(-1).sort(stable=True)
        activated, counts = by_expert.unique_consecutive(return_counts=True)
        ids, sizes = activated.tolist(), counts.tolist()
        rows = x.index_select(0, slots // top_k)
        hidden = product(rows, self.gate_up, ids, sizes)
        gate, up = hidden.chunk(2, dim=-1)
        out = product(F.silu(gate).mul_(up), self.down, ids, sizes)
        mixed = torch.empty_like(out).index_copy_(0, slots, out)
        return (mixed.view(*routes.shape, -1) * weights.unsqueeze(-1)).sum(dim=1)


def product(
    rows: Tensor, weights: list[Tensor], ids: list[int], sizes: list[int]
) -> Tensor:
    """Rows [slots, in] times their experts' weights [in, out]; experts end to end."""
    out = rows.new_empty(len(rows), weights[0].shape[1])
    for expert, own, into in zip(ids, rows.split(sizes), out.split(sizes), strict=True):
        torch.mm(own, weights[expert], out=into)
    return out
