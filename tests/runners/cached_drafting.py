"""The draft head over a cache of its own: the plain way, to compare others with."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from runners.torch_moe.attention import rotary


@dataclass
class DraftCache:
    """Keys and values of the rows so far, [heads, rows, dim] each."""

    keys: Tensor
    values: Tensor

    def extend(self, k, v):
        self.keys = torch.cat([self.keys, k], dim=1)
        self.values = torch.cat([self.values, v], dim=1)
        return self.keys, self.values


def empty_cache(drafter):
    heads = drafter.out.shape[1] // drafter.dim
    return DraftCache(*(drafter.out.new_empty(heads, 0, drafter.dim) for _ in range(2)))


def decode(drafter, embedded, feature, positions, mask, cache):
    """Put out rows [T, D] at their positions, behind the rows of a cache.

    `mask` [T, rows, T included] is True where a row sees another; None lets all
    rows see each other.
    """
    angles = rotary(positions, drafter.dim)
    x, q, k, v = drafter.project(embedded[None], feature[None], angles)
    keys, values = cache.extend(k[0], v[0])
    mixed = F.scaled_dot_product_attention(q[0], keys, values, attn_mask=mask)
    return drafter.finish(x[0], mixed.transpose(0, 1).flatten(1))
