"""SGLang's two attention kernels for CPUs, over a paged KV cache, in plain torch.

Both write into `out`. The arguments are positional and their order is SGLang's; the
versions differ: 0.5.16 passes neither the scales of a quantised cache nor `causal`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

SCALES = (1.0, 1.0)


def decode_attention_cpu(*args: Any) -> None:
    """One token a request. Writes its key and value, which come along, as well."""
    _decode(*(args if isinstance(args[3], float) else (*args[:3], *SCALES, *args[3:])))


def extend_attention_cpu(*args: Any) -> None:
    """Several tokens a request, whose keys and values are in the cache already."""
    if isinstance(args[6], float):
        _extend(*args)
    else:
        _extend(*_as_since_0_5_20(args))


def _as_since_0_5_20(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """0.5.16's arguments; there, a tree's lengths wrongly leave the tree itself out."""
    with_scales = [*args[:6], *SCALES, *args[6:], True]
    if with_scales[20] is not None:
        with_scales[10] = with_scales[10] + with_scales[11]
    return tuple(with_scales)


def _decode(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    key_scale: float,
    value_scale: float,
    out: Tensor,
    new_key: Tensor | None,
    new_value: Tensor | None,
    new_slots: Tensor,
    scratch: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    scaling: float,
    logit_cap: float,
    cross_attention: bool,
    window: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    _refuse(key_scale, value_scale, logit_cap, cross_attention, window, sinks)
    if new_key is not None and new_value is not None:
        keys[new_slots] = new_key.view(-1, *keys.shape[1:]).to(keys.dtype)
        values[new_slots] = new_value.view(-1, *values.shape[1:]).to(values.dtype)
    lengths = zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    for i, (row, length) in enumerate(lengths):
        slots = req_to_token[row, :length].long()
        out[i] = _attend(q[i, None], keys[slots], values[slots], scaling, None)[0]


def _extend(
    q: Tensor,
    new_key: Tensor | None,
    new_value: Tensor | None,
    out: Tensor,
    keys: Tensor,
    values: Tensor,
    key_scale: float,
    value_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_lens: Tensor,
    extend_starts: Tensor,
    longest: int,
    scaling: float,
    logit_cap: float,
    cross_attention: bool,
    window: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    causal: bool,
) -> None:
    """`seq_lens` counts the new tokens. A tree's mask says which of them see which."""
    _refuse(key_scale, value_scale, logit_cap, cross_attention, window, sinks)
    if not causal:
        raise NotImplementedError("the stub of sgl_kernel has no encoders")
    rows = zip(
        req_pool_indices.tolist(),
        seq_lens.tolist(),
        extend_lens.tolist(),
        extend_starts.tolist(),
        strict=True,
    )
    for i, (row, length, new, start) in enumerate(rows):
        slots = req_to_token[row, :length].long()
        seen = _causal(new) if tree_mask is None else tree_mask.view(-1, new, new)[i]
        prefix = seen.new_ones(new, length - new)
        piece = slice(start, start + new)
        out[piece] = _attend(
            q[piece], keys[slots], values[slots], scaling, torch.cat([prefix, seen], 1)
        )


def _attend(
    q: Tensor, keys: Tensor, values: Tensor, scaling: float, seen: Tensor | None
) -> Tensor:
    attended = scaled_dot_product_attention(
        q.transpose(0, 1).float(),
        keys.transpose(0, 1).float(),
        values.transpose(0, 1).float(),
        attn_mask=seen,
        scale=scaling,
        enable_gqa=True,
    )
    return attended.transpose(0, 1).to(q.dtype)


def _causal(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


def _refuse(
    key_scale: float,
    value_scale: float,
    logit_cap: float,
    cross_attention: bool,
    window: int,
    sinks: Tensor | None,
) -> None:
    """A wrong answer would look like a decoding error, so say what is not done here."""
    asked = {
        "a quantised KV cache": (key_scale, value_scale) != SCALES,
        "capped logits": logit_cap > 0,
        "cross attention": cross_attention,
        "sliding windows": window > 0,
        "attention sinks": sinks is not None,
    }
    missing = [feature for feature, wanted in asked.items() if wanted]
    if missing:
        raise NotImplementedError(
            f"the stub of sgl_kernel on a CPU has no {', '.join(missing)};"
            " use a model without, or a GPU"
        )
