"""What SGLang asks of its kernels about the KV cache's book-keeping.

`req_to_token[r]` lists the cache slots of request `r`, position by position. The
functions read or write pieces of it for a batch: request `b` is row
`req_pool_indices[b]`, and its piece runs from `start[b]` up to `end[b]`. Results lie
end to end in one flat tensor of the caller's.
"""

import ctypes

import numpy as np
import torch
from torch import Tensor


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start: Tensor,
    end: Tensor,
    out: Tensor,
    pool_len: int,
) -> None:
    pieces = [req_to_token[r, s:e] for r, s, e in _pieces(req_pool_indices, start, end)]
    slots = torch.cat(pieces)
    out[: slots.numel()] = slots.to(out.dtype)


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start: Tensor,
    end: Tensor,
    slots: Tensor,
    pool_len: int,
) -> None:
    at = 0
    for r, s, e in _pieces(req_pool_indices, start, end):
        req_to_token[r, s:e] = slots[at : at + e - s].to(req_to_token.dtype)
        at += e - s


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Reads the `topk * num_steps` slots behind each request, where drafting writes."""
    end = seq_lens + topk * num_steps
    assign_extend_cache_locs_cpu(
        req_pool_indices, req_to_token, seq_lens, end, out, pool_len
    )


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor:
    """A row of slots for every drafted branch: the prefix, then its own `num_steps`."""
    rows = req_to_token.new_zeros(len(seq_lens) * topk, pool_len)
    places = zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    for b, (r, s) in enumerate(places):
        branches = rows[b * topk : (b + 1) * topk]
        branches[:, :s] = req_to_token[r, :s]
        drafted = req_to_token[r, s : s + topk * num_steps]
        branches[:, s : s + num_steps] = drafted.view(topk, num_steps)
    return rows


def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, stride: int
) -> None:
    """The last accepted token of each request, `accept_lens` counting it."""
    last = torch.arange(len(accept_lens)) * stride + accept_lens - 1
    bonus_tokens.copy_(accept_tokens.flatten()[last])


def fill_accept_out_cache_loc_cpu(
    accept_index: Tensor, out_cache_loc: Tensor, accepted: Tensor
) -> None:
    """The slots of the accepted nodes, moved together; -1 marks none."""
    nodes = accept_index.flatten()
    slots = out_cache_loc[nodes[nodes >= 0].long()]
    accepted[: slots.numel()] = slots


def copy_all_layer_kv_cache_cpu(
    data_ptrs: Tensor, row_bytes: Tensor, to: Tensor, source: Tensor
) -> None:
    """Copies cache rows in every layer's buffers, which come as bare addresses.

    All rows are read before one is written: the two sets overlap when an accepted path
    moves to the front of its tree.
    """
    if not len(to):
        return
    rows = int(torch.maximum(to.max(), source.max())) + 1
    for address, width in zip(data_ptrs.tolist(), row_bytes.tolist(), strict=True):
        memory = (ctypes.c_ubyte * (rows * width)).from_address(address)
        buffer = np.frombuffer(memory, dtype=np.uint8).reshape(rows, width)
        buffer[to.numpy()] = buffer[source.numpy()]


def _pieces(rows: Tensor, start: Tensor, end: Tensor) -> list[tuple[int, int, int]]:
    return list(zip(rows.tolist(), start.tolist(), end.tolist(), strict=True))
