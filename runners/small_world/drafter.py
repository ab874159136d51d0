"""The draft head, as EAGLE-3 has it (Li et al., arXiv 2503.01840).

It reads three residual streams of the target, projected to one feature of the hidden
size, and has one decoder layer with a dense MLP. Its row for position t joins the
feature of position t with the embedding of the token after it, and predicts the token
after that one. The target's embedding and head serve it as well. Unlike the paper's,
its residual stream starts from both and not from the feature alone: the token would
otherwise have to pass through attention, which took far longer to learn.

While drafting there are no features of drafted tokens, so its own output stands in
for them. Training meets the same: `unroll` runs the head several times, each time fed
with what it put out before (the paper's training-time test).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from runners.small_world.target import (
    TargetShape,
    norm,
    rotary,
    rotate,
    split_heads,
    weight,
)

STREAMS = 3


@dataclass
class DraftCache:
    """Keys and values of the rows so far, [heads, rows, dim] each."""

    keys: Tensor
    values: Tensor

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add rows behind the others; return all."""
        self.keys = torch.cat([self.keys, k], dim=1)
        self.values = torch.cat([self.values, v], dim=1)
        return self.keys, self.values

    def keep(self, rows: int) -> None:
        """Forget all but the first rows."""
        self.keys, self.values = self.keys[:, :rows], self.values[:, :rows]


class Drafter(nn.Module):
    """One decoder layer on features of the target."""

    def __init__(self, shape: TargetShape, mlp_width: int) -> None:
        super().__init__()
        hidden, self.dim = shape.hidden, shape.head_dim
        rows = shape.heads * shape.head_dim
        self.join = weight(hidden, STREAMS * hidden)
        self.enter = weight(hidden, 2 * hidden)
        self.qkv = weight(3 * rows, 2 * hidden)
        self.out = weight(hidden, rows)
        self.gate_up = weight(2 * mlp_width, hidden)
        self.down = weight(hidden, mlp_width)

    def feature(self, streams: list[Tensor]) -> Tensor:
        """Streams of the target, [..., D] each, as one feature [..., D]."""
        return F.linear(torch.cat([norm(s) for s in streams], dim=-1), self.join)

    def project(
        self, embedded: Tensor, feature: Tensor, angles: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Residual stream [B, T, D], queries, keys and values [B, heads, T, dim]."""
        pair = torch.cat([norm(embedded), norm(feature)], dim=-1)
        parts = F.linear(pair, self.qkv).chunk(3, dim=-1)
        q, k, v = (split_heads(part, self.dim) for part in parts)
        return F.linear(pair, self.enter), rotate(q, angles), rotate(k, angles), v

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """What the layer puts out: residuals around attention [B, T, -1] and MLP."""
        x = x + F.linear(mixed, self.out)
        gate, up = F.linear(norm(x), self.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.down)

    def logits(self, out: Tensor, head: Tensor) -> Tensor:
        """What the rows that it put out predict, by the target's head."""
        return F.linear(norm(out), head)

    def unroll(self, embedded: Tensor, feature: Tensor, steps: int) -> list[Tensor]:
        """What each of several draft steps puts out, for rows [B, T, D].

        Row t of step j (from 0) is the j-th token drafted after row t - j, the last
        that had a feature of the target. So it attends to rows up to t - j of step 0,
        and to row t - j + i of step i. Its first j rows have no such past: skip them.
        """
        angles = rotary(torch.arange(feature.shape[1], device=feature.device), self.dim)
        outs: list[Tensor] = []
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for _ in range(steps):
            x, q, k, v = self.project(embedded, feature, angles)
            keys.append(k)
            values.append(v.to(k.dtype))
            mixed = attend_unrolled(q, keys, values).transpose(1, 2).flatten(2)
            outs.append(self.finish(x, mixed))
            feature = outs[-1].roll(1, dims=1)
        return outs

    def decode(
        self,
        embedded: Tensor,
        feature: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        cache: DraftCache,
    ) -> Tensor:
        """Put out rows [T, D] at their positions, behind the rows of a cache.

        `mask` [T, rows, T included] is True where a row sees another; None lets all
        rows see each other.
        """
        angles = rotary(positions, self.dim)
        x, q, k, v = self.project(embedded[None], feature[None], angles)
        keys, values = cache.extend(k[0], v[0])
        mixed = F.scaled_dot_product_attention(q[0], keys, values, attn_mask=mask)
        return self.finish(x[0], mixed.transpose(0, 1).flatten(1))

    def empty_cache(self) -> DraftCache:
        """A cache without rows."""
        heads = self.out.shape[1] // self.dim
        return DraftCache(*(self.out.new_empty(heads, 0, self.dim) for _ in range(2)))


def attend_unrolled(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attention of the last step's q [B, heads, T, dim], as `unroll` has it."""
    step, rows = len(keys) - 1, q.shape[2]
    q = q * q.shape[-1] ** -0.5
    past = torch.ones(rows, rows, dtype=torch.bool, device=q.device).tril(-step)
    scores = [(q @ keys[0].transpose(-1, -2)).masked_fill(~past, -1e9)]
    chain = [k.roll(step - i, dims=2) for i, k in enumerate(keys)][1:]
    scores += [(q * k).sum(dim=-1, keepdim=True) for k in chain]
    shares = torch.cat(scores, dim=-1).float().softmax(dim=-1).to(q.dtype)
    mixed = shares[..., :rows] @ values[0]
    for i, v in enumerate(values[1:], start=1):
        share = shares[..., rows + i - 1].unsqueeze(-1)
        mixed = mixed + share * v.roll(step - i, dims=2)
    return mixed


def draft_loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """Cross entropy [B, T] of drafted logits against the target's own."""
    return -(wanted.float().softmax(dim=-1) * logits.float().log_softmax(dim=-1)).sum(
        -1
    )
