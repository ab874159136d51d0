"""Where a forward's tokens stand: their cache rows, their angles, and what each sees.

Requests of a batch have contexts and trees of their own. So tokens are kept ragged, one
row each, wherever work is done row by row (projections, router, experts), and padded
to the widest request for attention alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from evict_profile.stats import Bools, Ints
from runners.torch_moe.attention import Angles, attend, rotary


@dataclass(frozen=True)
class CacheSlot:
    """One request's tokens in a forward: they see the first `length` rows of its slot,
    and of the rows behind those what `seen` says, bool [tokens, tail], whose last are
    the tokens' own."""

    index: int
    length: int
    seen: Bools
    positions: Ints

    @classmethod
    def chain(cls, index: int, length: int, tokens: int) -> "CacheSlot":
        """Tokens in a row, behind the first `length` rows."""
        causal = np.tri(tokens, dtype=np.bool_)
        return cls(index, length, causal, length + np.arange(tokens))


@dataclass(frozen=True)
class Layout:
    """A forward's tokens, T over a batch of B requests, the widest of W tokens.

    Attributes:
        slot: the first request's; the others follow it.
        batch: B.
        width: W.
        reach: rows of each slot that are attended to.
        rows: int64 [T], rows in the cache, all slots end to end.
        pads: int64 [T], indices among B * W; None where every request has W tokens.
        mask: float [B, 1, W, reach], 0 where visible, else -inf.
        angles: cosines and sines [T, 1, dim].
    """

    slot: int
    batch: int
    width: int
    reach: int
    rows: Tensor
    pads: Tensor | None
    mask: Tensor
    angles: Angles

    @cached_property
    def mask_for(self) -> Callable[[int], Tensor]:
        """The mask [B, 1, group * W, reach] of so many query heads on one key head."""
        return lru_cache(None)(lambda group: self.mask.repeat(1, 1, group, 1))


def make_layout(slots: Sequence[CacheSlot], cache: "KVCache") -> Layout:
    """Lay out requests whose slots lie side by side."""
    widths = [len(slot.positions) for slot in slots]
    width, batch = max(widths), len(slots)
    reach = max(slot.length + slot.seen.shape[1] for slot in slots)
    mask = np.full((batch, 1, width, reach), -np.inf, dtype=np.float32)
    rows, pads = [], []
    for b, (slot, own) in enumerate(zip(slots, widths, strict=True)):
        end = slot.length + slot.seen.shape[1]
        mask[b, 0, :own, : slot.length] = 0.0
        mask[b, 0, :own, slot.length : end][slot.seen] = 0.0
        # A row of padding must see something, or its softmax is no number.
        mask[b, 0, own:, 0] = 0.0
        rows.append(slot.index * cache.room + np.arange(end - own, end))
        pads.append(b * width + np.arange(own))
    positions = np.concatenate([slot.positions for slot in slots])
    even = min(widths) == width
    device = cache.device
    return Layout(
        slots[0].index,
        batch,
        width,
        reach,
        rows=torch.from_numpy(np.concatenate(rows)).to(device),
        pads=None if even else torch.from_numpy(np.concatenate(pads)).to(device),
        mask=torch.from_numpy(mask).to(device),
        angles=cache.angles_at(positions),
    )


class KVCache:
    """Keys and values of all layers, [layers, 2, heads, slots * room, dim].

    The angles of all positions are kept with it, since a draft level is too short to
    work them out anew.
    """

    def __init__(
        self,
        layers: int,
        heads: int,
        slots: int,
        room: int,
        dim: int,
        device: torch.device,
    ) -> None:
        self.slots, self.room, self.device = slots, room, device
        self.rows = torch.zeros(layers, 2, heads, slots * room, dim, device=device)
        self.angles = rotary(torch.arange(room, device=device), dim)

    def angles_at(self, positions: Ints) -> Angles:
        """Cosines and sines [T, 1, dim] at positions [T]."""
        index = torch.from_numpy(positions).to(self.device)
        cos, sin = (a.index_select(0, index).unsqueeze(1) for a in self.angles)
        return cos, sin

    def write(self, layer: int, layout: Layout, k: Tensor, v: Tensor) -> None:
        """Put the keys and values [T, heads, dim] of a forward's tokens."""
        self.rows[layer, 0].index_copy_(1, layout.rows, k.transpose(0, 1))
        self.rows[layer, 1].index_copy_(1, layout.rows, v.transpose(0, 1))

    def read(self, layer: int, layout: Layout) -> tuple[Tensor, Tensor]:
        """Keys and values that the forward can see, [B, heads, reach, dim] each."""
        whole = self.rows[layer].unflatten(2, (self.slots, self.room))
        slots = slice(layout.slot, layout.slot + layout.batch)
        seen = whole[:, :, slots, : layout.reach].transpose(1, 2)
        return seen[0], seen[1]

    def move(self, source: Ints, target: Ints) -> None:
        """Copy rows over others, in all layers."""
        if np.array_equal(source, target):
            return
        device = self.rows.device
        moved = self.rows.index_select(3, torch.from_numpy(source).to(device))
        self.rows.index_copy_(3, torch.from_numpy(target).to(device), moved)


def attend_ragged(q: Tensor, keys: Tensor, values: Tensor, layout: Layout) -> Tensor:
    """Masked attention of q [T, heads, dim] over keys of different reach: [T, -1]."""
    pads, mask = layout.pads, layout.mask_for(q.shape[1] // keys.shape[1])
    if pads is None:
        return attend(q, keys, values, mask, layout.width)
    padded = q.new_zeros(layout.batch * layout.width, *q.shape[1:])
    padded.index_copy_(0, pads, q)
    return attend(padded, keys, values, mask, layout.width).index_select(0, pads)
