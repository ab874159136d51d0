"""The draft head while it is trained: several draft steps, each fed with the last.

While drafting the head's own output stands in for features that no target has made.
Training meets the same (EAGLE-3's training-time test, arXiv 2503.01840).
"""

import torch
from torch import Tensor

from examples.small_world.engine.drafter import Drafter
from runners.torch_moe.attention import rotary


def unroll(
    drafter: Drafter, embedded: Tensor, feature: Tensor, steps: int
) -> list[Tensor]:
    """What each of several draft steps puts out, for rows [B, T, D].

    Row t of step j (from 0) is the j-th token drafted after row t - j, the last
    that had a feature of the target. So it attends to rows up to t - j of step 0,
    and to row t - j + i of step i. Its first j rows have no such past: skip them.
    """
    angles = rotary(torch.arange(feature.shape[1], device=feature.device), drafter.dim)
    outs: list[Tensor] = []
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for _ in range(steps):
        x, q, k, v = drafter.project(embedded, feature, angles)
        keys.append(k)
        values.append(v.to(k.dtype))
        mixed = attend_unrolled(q, keys, values).transpose(1, 2).flatten(2)
        outs.append(drafter.finish(x, mixed))
        feature = outs[-1].roll(1, dims=1)
    return outs


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
