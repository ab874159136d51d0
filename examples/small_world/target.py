"""The target model, trainable: the maths of runners/torch_moe, with autograd.

The runner's layers write into caches and run under inference mode, which a gradient
cannot pass. A test compares both on the same weights (test_target.py).
"""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from examples.small_world.engine.drafter import (
    TargetShape,
    feature_layers,
    norm,
    split_heads,
    weight,
)
from runners.torch_moe.attention import Angles, rotary, rotate


@dataclass(frozen=True)
class Pass:
    """Of a batch of sequences: logits [B, T, vocab], residual streams [B, T, D] for the
    drafter, low to high, experts [layers, B * T, k], the load-balance loss, 1 where
    every expert is used alike, and the router's mean entropy in nats."""

    logits: Tensor
    features: list[Tensor]
    routes: Tensor
    balance: Tensor
    entropy: Tensor


def matmul_type(x: Tensor) -> torch.dtype:
    """The type in which autocast would multiply; it does not know grouped_mm."""
    kind = x.device.type
    on = torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if on else x.dtype


class CausalAttention(nn.Module):
    """Causal grouped-query attention."""

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.dim = shape.head_dim
        self.rows = [shape.heads * self.dim] + [shape.key_heads * self.dim] * 2
        self.group = shape.heads // shape.key_heads
        self.qkv = weight(sum(self.rows), shape.hidden)
        gain = (2 * shape.layers) ** -0.5
        self.out = weight(shape.hidden, self.rows[0], gain=gain)

    def forward(self, x: Tensor, angles: Angles) -> Tensor:
        """Attention of x [B, T, D] at the angles of its T positions."""
        parts = F.linear(x, self.qkv).split(self.rows, dim=-1)
        q, k, v = (split_heads(part, self.dim) for part in parts)
        q, k = rotate(q, angles), rotate(k, angles)
        k, v = (t.repeat_interleave(self.group, dim=1) for t in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True)
        return F.linear(mixed.transpose(1, 2).flatten(2), self.out)


class MoeBlock(nn.Module):
    """A softmax router with renormalised top-k, over gated SiLU experts."""

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        count, hidden, width = shape.experts, shape.hidden, shape.expert_width
        self.top_k = shape.top_k
        gain = (2 * shape.layers) ** -0.5
        self.router = weight(count, hidden)
        self.gate_up = weight(count, 2 * width, hidden)
        self.down = weight(count, hidden, width, gain=gain)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mix of experts for x [N, D]; also routes [N, k] and scores [N, experts]."""
        with torch.autocast(x.device.type, enabled=False):
            scores = F.linear(x.float(), self.router).softmax(dim=-1)
        routes = scores.topk(self.top_k, dim=-1).indices
        shares = scores.gather(1, routes)
        shares = shares / shares.sum(dim=-1, keepdim=True)
        return self.mix(x, routes, shares), routes, scores

    def mix(self, x: Tensor, routes: Tensor, shares: Tensor) -> Tensor:
        """Run each expert once on all of its tokens."""
        slots = routes.view(-1).sort(stable=True).indices
        ends = loads(routes, len(self.down)).cumsum(0).to(torch.int32)
        kind, owners = matmul_type(x), slots // self.top_k
        rows = x.index_select(0, owners).to(kind)
        into = self.gate_up.to(kind).transpose(1, 2)
        gate, up = F.grouped_mm(rows, into, offs=ends).chunk(2, dim=-1)
        outof = self.down.to(kind).transpose(1, 2)
        out = F.grouped_mm(F.silu(gate) * up, outof, offs=ends)
        out = out * shares.view(-1).index_select(0, slots).unsqueeze(1)
        return torch.zeros_like(x).index_add(0, owners, out.to(x.dtype))


class DecoderLayer(nn.Module):
    """Attention, then experts, with residuals."""

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.attention = CausalAttention(shape)
        self.experts = MoeBlock(shape)

    def forward(self, x: Tensor, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
        """One layer over x [B, T, D]; also routes and scores of its B * T tokens."""
        x = x + self.attention(norm(x), angles)
        mixed, routes, scores = self.experts(norm(x).flatten(0, 1))
        return x + mixed.view_as(x), routes, scores


class Target(nn.Module):
    """A mixture-of-experts language model."""

    def __init__(self, shape: TargetShape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.randn(shape.vocab, shape.hidden))
        layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.layers))
        self.layers = cast(list[DecoderLayer], layers)
        self.head = weight(shape.vocab, shape.hidden, gain=0.5)

    def forward(self, ids: Tensor) -> Pass:
        """Logits, features and routing of token ids [B, T]."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        angles = rotary(positions, self.shape.head_dim)
        x = F.embedding(ids, self.embedding)
        streams, chosen, spread = [], [], []
        for layer in self.layers:
            x, routes, scores = layer(x, angles)
            streams.append(x)
            chosen.append(routes)
            spread.append(scores)
        routes = torch.stack(chosen)
        return Pass(
            logits=F.linear(norm(x), self.head),
            features=[streams[i] for i in feature_layers(self.shape.layers)],
            routes=routes,
            balance=balance_loss(routes, spread),
            entropy=torch.stack([entropy(scores) for scores in spread]).mean(),
        )


def loads(routes: Tensor, experts: int) -> Tensor:
    """Slots that each expert got; unlike bincount, it does not wait for a GPU."""
    flat = routes.flatten()
    return flat.new_zeros(experts).scatter_add_(0, flat, torch.ones_like(flat))


def balance_loss(routes: Tensor, scores: list[Tensor]) -> Tensor:
    """Experts times the sum of (share of slots x mean score), mean over the layers.

    The loss of Switch transformers (Fedus et al., arXiv 2101.03961, section 2.2).
    """
    losses = []
    for chosen, spread in zip(routes, scores, strict=True):
        experts = spread.shape[1]
        slots = loads(chosen, experts)
        losses.append(experts * (slots / chosen.numel() * spread.mean(dim=0)).sum())
    return torch.stack(losses).mean()


def entropy(scores: Tensor) -> Tensor:
    """Mean entropy of rows of probabilities, in nats."""
    return torch.special.entr(scores.detach()).sum(dim=-1).mean()
