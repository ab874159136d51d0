"""The draft head, as EAGLE-3 has it (Li et al., arXiv 2503.01840).

Its row for position t joins the target's feature of position t with the embedding of
the token after it, and predicts the token after that one. Unlike the paper's, its
residual stream starts from both: else the token has to pass through attention, which
took far longer to learn. Drafted tokens have no features; its own output stands in.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from runners.torch_moe.attention import Angles, rotate

STREAMS = 3


@dataclass(frozen=True)
class TargetShape:
    vocab: int
    hidden: int
    layers: int
    heads: int
    key_heads: int
    head_dim: int
    experts: int
    top_k: int
    expert_width: int


def feature_layers(layers: int) -> tuple[int, int, int]:
    """Layers behind which the drafter reads: low, middle and the last."""
    return layers // 8, layers // 2, layers - 1


def weight(*sizes: int, gain: float = 1.0) -> nn.Parameter:
    """A normal random weight, scaled by gain / sqrt(its inner size)."""
    return nn.Parameter(torch.randn(sizes) * gain / sizes[-1] ** 0.5)


def norm(x: Tensor) -> Tensor:
    """Root mean square norm without weights."""
    return F.rms_norm(x, x.shape[-1:])


def split_heads(x: Tensor, dim: int) -> Tensor:
    """[B, T, heads * dim] -> [B, heads, T, dim]."""
    return x.unflatten(-1, (-1, dim)).transpose(1, 2)


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
        self, embedded: Tensor, feature: Tensor, angles: Angles
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
