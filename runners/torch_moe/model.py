"""A verification forward in plain torch: real shapes, real kernels, random weights.

Each MoE layer runs attention of the tree's tokens over the KV cache under a tree
mask, the router, and the experts through `grouped_mm`, whose time follows the union:
the weights of an expert are read if, and only if, a token was routed to it.
(`batched_mm`-style experts gather weights for each token, and know no union.)
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from runners.torch_moe.attention import Attention, AttnMetadata
from runners.torch_moe.shape import RandomWeights, StackShape


class Mlp:
    """A gated MLP: down(silu(gate x) * up x)."""

    def __init__(self, hidden: int, width: int, noise: RandomWeights) -> None:
        self.gate_up = noise.weight(2 * width, hidden)
        self.down = noise.weight(hidden, width)

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = F.linear(x, self.gate_up).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, self.down)


class Experts:
    """Routed experts, run in one grouped matrix product each for gate-up and down."""

    def __init__(self, shape: StackShape, noise: RandomWeights) -> None:
        count, width = shape.moe.num_experts, shape.moe.expert_width
        self.gate_up = noise.weight(count, 2 * width, shape.hidden)
        self.down = noise.weight(count, shape.hidden, width)
        self.ids = torch.arange(count, device=self.down.device)

    def __call__(self, x: Tensor, routes: Tensor, weights: Tensor) -> Tensor:
        """Mix of each token's experts; x [T, D], routes and weights [T, k]."""
        tokens, top_k = routes.shape
        by_expert, slots = routes.view(-1).sort(stable=True)
        ends = torch.searchsorted(by_expert, self.ids, right=True).to(torch.int32)
        rows = x[slots // top_k]
        hidden = F.grouped_mm(rows, self.gate_up.transpose(1, 2), offs=ends)
        gate, up = hidden.chunk(2, dim=-1)
        out = F.grouped_mm(F.silu(gate) * up, self.down.transpose(1, 2), offs=ends)
        mixed = torch.empty_like(out)
        mixed[slots] = out
        return (mixed.view(tokens, top_k, -1) * weights.unsqueeze(-1)).sum(dim=1)


class Router:
    """Scores every expert and keeps top-k: softmax, or sigmoid with groups.

    Sigmoid routing keeps `groups_kept` groups by the sum of their two best scores
    (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
    """

    def __init__(self, shape: StackShape, noise: RandomWeights) -> None:
        self.moe = shape.moe
        self.weight = noise.weight(shape.moe.num_experts, shape.hidden)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.scores(x)
        allowed = scores if self.moe.groups == 1 else self._best_groups(scores)
        routes = allowed.topk(self.moe.top_k, dim=-1).indices
        weights = scores.gather(1, routes)
        return routes, (weights / weights.sum(dim=-1, keepdim=True)).to(x.dtype)

    def scores(self, x: Tensor) -> Tensor:
        """What it gives each expert, float32 [T, E]."""
        logits = F.linear(x, self.weight).float()
        softmax = self.moe.router == "softmax"
        return logits.softmax(dim=-1) if softmax else logits.sigmoid()

    def _best_groups(self, scores: Tensor) -> Tensor:
        grouped = scores.view(len(scores), self.moe.groups, -1)
        strength = grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(dim=-1)
        kept = strength.topk(self.moe.groups_kept, dim=-1).indices
        mask = torch.zeros_like(strength).scatter_(1, kept, 1.0)
        return (grouped * mask.unsqueeze(-1)).view_as(scores)


class MoeLayer:
    """Attention, then router, experts and shared expert, with residuals."""

    def __init__(
        self, shape: StackShape, attention: Attention, noise: RandomWeights
    ) -> None:
        self.attention = attention
        self.router = Router(shape, noise)
        self.experts = Experts(shape, noise)
        shared = shape.moe.shared_width
        self.shared = Mlp(shape.hidden, shared, noise) if shared else None

    def __call__(
        self, x: Tensor, meta: AttnMetadata, routes: Tensor, forced: bool
    ) -> Tensor:
        """One layer over x [T, D].

        `routes` [T, k] holds the experts to run when `forced`; else the router's
        choice is written there. The router runs either way: it costs its time.
        """
        x = x + self.attention(F.rms_norm(x, x.shape[-1:]), meta)
        normed = F.rms_norm(x, x.shape[-1:])
        chosen, weights = self.router(normed)
        if not forced:
            routes.copy_(chosen)
        mixed = self.experts(normed, routes, weights)
        return x + (mixed if self.shared is None else mixed + self.shared(normed))


class DenseLayer:
    """Attention, then one MLP, with residuals: the first layers of some models."""

    def __init__(
        self, shape: StackShape, attention: Attention, noise: RandomWeights
    ) -> None:
        self.attention = attention
        self.mlp = Mlp(shape.hidden, shape.dense_width, noise)

    def __call__(self, x: Tensor, meta: AttnMetadata) -> Tensor:
        x = x + self.attention(F.rms_norm(x, x.shape[-1:]), meta)
        return x + self.mlp(F.rms_norm(x, x.shape[-1:]))
