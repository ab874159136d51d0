"""Attention of a draft tree's tokens over a KV cache, under the tree's mask.

Cost: the weights of the projections once, and the cache of every request once. A
windowed layer reads only the last `sliding_window` tokens of it.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from runners.torch_moe.shape import RandomWeights, StackShape

Angles = tuple[Tensor, Tensor]
ROTARY_BASE = 10_000.0
KERNELS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overrideable"}
"""What torch calls its kernels, by the numbers of torch.nn.attention.SDPBackend."""


@dataclass(frozen=True)
class AttnMetadata:
    """What attention needs of a forward: sizes, mask and rotary angles of its tokens.

    The tensors are buffers that `set_tree` fills, so that a captured graph which reads
    them serves any tree.

    The mask is [group * width, context + width], 0 where visible, else -inf, repeated
    for the `group` query heads that share a key head; the angles are rotary cosines and
    sines [batch * width, 1, dim].
    """

    batch: int
    width: int
    context: int
    mask: Tensor
    angles: Angles

    def set_tree(self, tree: Tensor) -> None:
        """Take a tree's mask, bool [width, width]; every node sees the context."""
        hidden = torch.where(tree, 0.0, -torch.inf).to(self.mask)
        group = len(self.mask) // self.width
        self.mask[:, self.context :] = hidden.repeat(group, 1)
        depth = (tree.sum(dim=1) - 1).to(self.mask.device)
        fresh = rotary(self.context + depth, self.angles[0].shape[-1])
        for buffer, values in zip(self.angles, fresh, strict=True):
            buffer.copy_(values.repeat(self.batch, 1).unsqueeze(1))


def make_metadata(
    shape: StackShape, batch: int, width: int, context: int, device: torch.device
) -> AttnMetadata:
    """Metadata of these sizes; no tree is set yet."""
    a = shape.attention
    latent = a.kind == "mla"
    group = a.num_heads if latent else a.num_heads // a.num_kv_heads
    dim = a.qk_rope_dim if latent else a.head_dim

    def zeros(*sizes: int) -> Tensor:
        return torch.zeros(sizes, dtype=shape.dtype, device=device)

    mask = zeros(group * width, context + width)
    angles = zeros(batch * width, 1, dim), zeros(batch * width, 1, dim)
    return AttnMetadata(batch, width, context, mask, angles)


def rotary(positions: Tensor, dim: int) -> Angles:
    """Cosines and sines [..., dim] of the rotary angles at positions [...]."""
    powers = torch.arange(0, dim, 2, device=positions.device) / dim
    angles = positions.unsqueeze(-1) * ROTARY_BASE**-powers
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Turn x [..., dim]; its halves are the two coordinates of each plane."""
    first, second = x.chunk(2, dim=-1)
    return x * angles[0] + torch.cat([-second, first], dim=-1) * angles[1]


class Cache:
    """One layer's keys and values for every request, room for the tree included.

    `tensors` are [batch, heads, room, dim] each. Latent attention keeps one: its
    values are the first part of its keys.
    """

    def __init__(
        self, sizes: list[tuple[int, int]], slots: tuple[int, int], noise: RandomWeights
    ):
        batch, room = slots
        self.tensors = [noise.weight(batch, h, room, d) for h, d in sizes]

    def extend(self, meta: AttnMetadata, window: int, *fresh: Tensor) -> list[Tensor]:
        """Write the tree's rows [T, heads, dim] behind the context; return views."""
        start, end = meta.context, meta.context + meta.width
        for tensor, rows in zip(self.tensors, fresh, strict=True):
            part = rows.view(meta.batch, meta.width, *rows.shape[1:]).transpose(1, 2)
            tensor[: meta.batch, :, start:end] = part
        return self.views(meta, window)

    def views(self, meta: AttnMetadata, window: int) -> list[Tensor]:
        """What a tree there attends to: context, or a window of it, and itself."""
        first = max(0, meta.context - window) if window else 0
        end = meta.context + meta.width
        return [tensor[: meta.batch, :, first:end] for tensor in self.tensors]


class Attention:
    def __init__(
        self,
        shape: StackShape,
        slots: tuple[int, int],
        window: int,
        noise: RandomWeights,
    ):
        self.spec, self.window = shape.attention, window
        self.cache = Cache(self.build(shape.hidden, noise), slots, noise)

    def build(self, hidden: int, noise: RandomWeights) -> list[tuple[int, int]]:
        """Draw the weights; returns heads and size of each tensor to cache."""
        a = self.spec
        self.query_rows = a.num_heads * a.head_dim
        self.key_rows = a.num_kv_heads * a.head_dim
        self.qkv = noise.weight(self.query_rows + 2 * self.key_rows, hidden)
        self.out = noise.weight(hidden, self.query_rows)
        return [(a.num_kv_heads, a.head_dim)] * 2

    def __call__(self, x: Tensor, meta: AttnMetadata) -> Tensor:
        rows = [self.query_rows, self.key_rows, self.key_rows]
        parts = F.linear(x, self.qkv).split(rows, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, self.spec.head_dim)) for part in parts)
        if self.spec.qk_norm:
            q, k = F.rms_norm(q, q.shape[-1:]), F.rms_norm(k, k.shape[-1:])
        q, k = rotate(q, meta.angles), rotate(k, meta.angles)
        keys, values = self.cache.extend(meta, self.window, k, v)
        out = attend(q, keys, values, mask_of(keys, meta), meta.width)
        return F.linear(out, self.out)

    def cached(self, meta: AttnMetadata) -> tuple[Tensor, Tensor]:
        """The keys and values that a forward attends to."""
        keys, values = self.cache.views(meta, self.window)
        return keys, values


class LatentAttention(Attention):
    """Multi-head latent attention with absorbed projections, as decoding runs it.

    Queries are mapped into the latent space (DeepSeek-V2, arXiv 2405.04434, section
    2.1.2), so that all heads share one cached latent: multi-query attention.
    """

    def build(self, hidden: int, noise: RandomWeights) -> list[tuple[int, int]]:
        a = self.spec
        latent = a.kv_lora_rank + a.qk_rope_dim
        query_rows = a.num_heads * (a.head_dim + a.qk_rope_dim)
        self.query_down = noise.weight(a.q_lora_rank, hidden)
        self.query_up = noise.weight(query_rows, a.q_lora_rank)
        self.latent = noise.weight(latent, hidden)
        self.absorb_key = noise.weight(a.num_heads, a.head_dim, a.kv_lora_rank)
        self.absorb_value = noise.weight(a.num_heads, a.kv_lora_rank, a.head_dim)
        self.out = noise.weight(hidden, a.num_heads * a.head_dim)
        return [(1, latent)]

    def __call__(self, x: Tensor, meta: AttnMetadata) -> Tensor:
        a = self.spec
        low = F.linear(x, self.query_down)
        query = F.linear(F.rms_norm(low, low.shape[-1:]), self.query_up)
        query = query.unflatten(-1, (a.num_heads, -1))
        plain, positional = query.split([a.head_dim, a.qk_rope_dim], dim=-1)
        absorbed = torch.einsum("thd,hdc->thc", plain, self.absorb_key)
        q = torch.cat([absorbed, rotate(positional, meta.angles)], dim=-1)
        latent = F.linear(x, self.latent).unsqueeze(1)
        body, key = latent.split([a.kv_lora_rank, a.qk_rope_dim], dim=-1)
        fresh = torch.cat([body, rotate(key, meta.angles)], dim=-1)
        (keys,) = self.cache.extend(meta, self.window, fresh)
        values = keys[..., : a.kv_lora_rank]
        scale = (a.head_dim + a.qk_rope_dim) ** -0.5
        mixed = attend(q, keys, values, mask_of(keys, meta), meta.width, scale)
        mixed = mixed.view(len(x), a.num_heads, -1)
        values_out = torch.einsum("thc,hcd->thd", mixed, self.absorb_value)
        return F.linear(values_out.flatten(1), self.out)

    def cached(self, meta: AttnMetadata) -> tuple[Tensor, Tensor]:
        (keys,) = self.cache.views(meta, self.window)
        return keys, keys[..., : self.spec.kv_lora_rank]


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    width: int,
    scale: float | None = None,
) -> Tensor:
    """Masked attention of q [batch * width, heads, dim] over cached keys and values.

    Query heads that share a key head are folded into the rows of one attention, so
    that the cache is read once, by whichever fused kernel the device has.
    """
    query = fold(q, keys.shape[1], width)
    out = F.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, scale=scale
    )
    split = out.unflatten(2, (-1, width))
    return split.permute(0, 3, 1, 2, 4).reshape(len(q), -1)


def kernel_of(attention: Attention, meta: AttnMetadata) -> str:
    keys, values = attention.cached(meta)
    sizes = meta.batch * meta.width, attention.spec.num_heads, keys.shape[-1]
    query = fold(keys.new_zeros(sizes), keys.shape[1], meta.width)
    choice = torch._fused_sdp_choice(query, keys, values, mask_of(keys, meta))
    return KERNELS.get(choice, str(choice))


def mask_of(keys: Tensor, meta: AttnMetadata) -> Tensor:
    """The mask over the keys that a window leaves."""
    return meta.mask[:, -keys.shape[2] :]


def fold(q: Tensor, key_heads: int, width: int) -> Tensor:
    """[T, heads, dim] -> [batch, key_heads, group * width, dim]."""
    grouped = q.unflatten(1, (key_heads, -1)).unflatten(0, (-1, width))
    return grouped.permute(0, 2, 3, 1, 4).flatten(2, 3)


def make_attention(
    shape: StackShape, index: int, slots: tuple[int, int], noise: RandomWeights
) -> Attention:
    """The attention of layer `index`, windowed where the model says so."""
    a = shape.attention
    windowed = a.sliding_window and index % a.sliding_every == 0
    kind = LatentAttention if a.kind == "mla" else Attention
    return kind(shape, slots, a.sliding_window if windowed else 0, noise)
