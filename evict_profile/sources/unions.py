"""Activated experts U behind each public row.

Rows state tokens, not U. The collector's balanced sampler gives it: it chooses expert
(t + j * ceil(E/k)) mod E for token t and choice j, so U is exact.

A group-limited router (DeepSeek-V3: the best 4 of 8 groups) replaces wanted experts
outside the kept groups by the lowest experts inside: 64 tokens activate half of all
experts. Rows do not state the router.
"""

from functools import lru_cache
from math import ceil

import numpy as np

from evict_profile.stats import Bools, Ints

GROUPS, KEPT = 8, 4


@lru_cache(maxsize=4096)
def balanced_union(
    tokens: int, experts: int, top_k: int, ep: int = 1, grouped: bool = False
) -> int:
    """Distinct experts of the first of `ep` ranks under balanced routing."""
    wanted = _wanted(tokens, experts, top_k)
    counts = (wanted[:, :, None] == np.arange(experts)).sum(axis=1)
    if grouped:
        counts = np.where(_in_kept_groups(counts), counts, -1)
    # A stable sort: ties go to the lowest expert, as in a top-k.
    chosen = np.argsort(-counts, axis=1, kind="stable")[:, :top_k]
    return len(np.unique(chosen[chosen < experts // ep]))


def _wanted(tokens: int, experts: int, top_k: int) -> Ints:
    """Experts of the balanced sampler, int64 [tokens, top_k]."""
    stride = ceil(experts / top_k)
    start = np.arange(tokens, dtype=np.float32)[:, None]
    if tokens < stride:
        start = start * np.float32(stride) / np.float32(tokens)
    choice = np.arange(top_k, dtype=np.float32)[None, :] * np.float32(stride)
    wanted: Ints = np.floor((start + choice) % experts).astype(np.int64)
    return wanted


def _in_kept_groups(counts: Ints) -> Bools:
    """Experts in kept groups, bool [tokens, experts]; their best two vote."""
    tokens, experts = counts.shape
    ranked = np.sort(counts.reshape(tokens, GROUPS, -1), axis=2)
    votes = ranked[:, :, -2:].sum(axis=2)
    kept = np.argsort(-votes, axis=1, kind="stable")[:, :KEPT]
    group = np.arange(experts) // (experts // GROUPS)
    inside: Bools = (group[None, :, None] == kept[:, None, :]).any(axis=2)
    return inside
