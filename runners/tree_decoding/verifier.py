"""The target, verifying: one forward over the draft trees of a batch.

The layers are those of runners/torch_moe, with the trained weights; attention is laid
out anew, because there all requests share one tree and one context.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from runners.torch_moe.attention import Attention
from runners.torch_moe.model import Experts, MoeLayer
from runners.torch_moe.shape import Noise
from runners.tree_decoding.checkpoint import make_stack
from runners.tree_decoding.layout import KVCache, Layout, attend
from runners.tree_decoding.target import Target, feature_layers, norm, rotate

Routing = Callable[[int, MoeLayer, Tensor], tuple[Tensor, Tensor]]
"""Experts and weights, [T, k] each, of a layer's tokens x [T, D]."""


@dataclass(frozen=True)
class Verified:
    """What the target found for T tokens.

    Attributes:
        logits: [T, vocab].
        streams: residual streams [T, D] that the drafter reads, low to high.
    """

    logits: Tensor
    streams: list[Tensor]


class Verifier:
    """The target's layers and the cache of its requests."""

    def __init__(
        self, target: Target, slots: int, room: int, device: torch.device
    ) -> None:
        shape = target.shape
        self.shape, self.device = shape, device
        self.stack = make_stack(target, (1, 1), Noise(device, torch.float32, 0))
        self.cache = KVCache(
            shape.layers, shape.key_heads, slots, room, shape.head_dim, device
        )
        self.experts = [ActivatedExperts(layer.experts) for layer in self.stack.moe]
        self.read_behind = feature_layers(shape.layers)

    def routes(self, tokens: int) -> Tensor:
        """Room for the experts of a forward, int64 [layers, T, k]."""
        shape = (self.shape.layers, tokens, self.shape.top_k)
        return torch.zeros(shape, dtype=torch.int64, device=self.device)

    def verify(
        self,
        ids: Tensor,
        layout: Layout,
        routes: Tensor,
        routing: Routing | None = None,
    ) -> Verified:
        """Run token ids [T]; the experts that they chose are written to `routes`.

        `routing` chooses them instead of the model's routers.
        """
        x = F.embedding(ids, self.stack.embedding)
        streams = []
        for index in range(self.shape.layers):
            x = self.run_layer(index, x, layout, routes[index], False, routing)
            if index in self.read_behind:
                streams.append(x)
        return Verified(F.linear(norm(x), self.stack.head), streams)

    def run_layer(
        self,
        index: int,
        x: Tensor,
        layout: Layout,
        routes: Tensor,
        forced: bool,
        routing: Routing | None = None,
    ) -> Tensor:
        """One layer over x [T, D]; `routes` [T, k] are obeyed if forced, else set."""
        layer: MoeLayer = self.stack.moe[index]
        x = x + self._attention(index, layer.attention, norm(x), layout)
        normed = norm(x)
        chosen, weights = (
            routing(index, layer, normed) if routing else layer.router(normed)
        )
        if not forced:
            routes.copy_(chosen)
        return x + self.experts[index](normed, routes, weights)

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
        out = attend(q, *self.cache.read(index, layout), layout)
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
