"""Activated experts U behind each public row.

Rows state tokens, not U; the collector's samplers give it. "balanced" rows choose
expert (t + j * ceil(E/k)) mod E for token t and choice j, so U is exact. "power_law"
rows draw shares at random, so U is a mean over draws; these rows test the fit off its
diagonal.

A group-limited router (DeepSeek-V3: the best 4 of 8 groups) replaces wanted experts
outside the kept groups by the lowest experts inside: 64 tokens activate half of all
experts. Rows do not state the router.
"""

from functools import lru_cache
from math import ceil
from typing import NamedTuple

import numpy as np

from evict_profile.stats import Bools, Floats, Ints

POWER_LAW_DRAWS = 32
BOUNDS_FEW, BOUNDS_MANY = (0.01, 2.0), (1.0, 0.8)
"""Bounds of the sampler's shares with fewer slots than experts, and with more (the
upper times the tokens)."""


class RoutingRule(NamedTuple):
    """`groups` of 1 is a plain top-k."""

    groups: int
    kept: int
    reason: str

    def __str__(self) -> str:
        return f"grouped {self.groups}/{self.kept}" if self.groups > 1 else "plain"


PLAIN = RoutingRule(1, 1, "a plain top-k of the sampler's choice")
DEEPSEEK = RoutingRule(
    8,
    4,
    "this engine groups DeepSeek-V3's experts; by plain unions its rows would exceed "
    "the memory's bandwidth by 1.4 to 2 times",
)
MIN_LATENCY = DEEPSEEK._replace(
    reason="TensorRT-LLM's collector gives every model DeepSeek's gate in this mode"
)
DEEPSEEK_SHAPE = (7168, 2048, 8, 256)
GROUPING_ENGINES = {("sglang", "0.5.14"), ("vllm", "0.24.0")}


def router_of(
    engine: str, version: str, kernel: str, shape: tuple[int, int, int, int]
) -> RoutingRule:
    """Router of a kernel; `shape` is (hidden size, expert width, top-k, experts)."""
    if "min_latency" in kernel:
        return MIN_LATENCY
    if shape == DEEPSEEK_SHAPE and (engine, version) in GROUPING_ENGINES:
        return DEEPSEEK
    return PLAIN


@lru_cache(maxsize=4096)
def balanced_union(
    tokens: int, experts: int, top_k: int, ep: int = 1, router: RoutingRule = PLAIN
) -> int:
    """Distinct experts of the first of `ep` ranks under balanced routing."""
    wanted = _wanted(tokens, experts, top_k)
    counts = (wanted[:, :, None] == np.arange(experts)).sum(axis=1)
    if router.groups > 1:
        counts = np.where(_in_kept_groups(counts, router), counts, -1)
    # A stable sort: ties go to the lowest expert, as in a top-k.
    chosen = np.argsort(-counts, axis=1, kind="stable")[:, :top_k]
    return len(np.unique(chosen[chosen < experts // ep]))


@lru_cache(maxsize=4096)
def power_law_union(tokens: int, experts: int, top_k: int, exponent: float) -> float:
    """Mean distinct experts under power-law routing."""
    rng = np.random.default_rng(0)
    draws = (
        _draw(rng, tokens, experts, top_k, exponent) for _ in range(POWER_LAW_DRAWS)
    )
    return float(np.mean([np.count_nonzero(counts) for counts in draws]))


def _wanted(tokens: int, experts: int, top_k: int) -> Ints:
    """Experts of the balanced sampler, int64 [tokens, top_k]."""
    stride = ceil(experts / top_k)
    start = np.arange(tokens, dtype=np.float32)[:, None]
    if tokens < stride:
        start = start * np.float32(stride) / np.float32(tokens)
    choice = np.arange(top_k, dtype=np.float32)[None, :] * np.float32(stride)
    wanted: Ints = np.floor((start + choice) % experts).astype(np.int64)
    return wanted


def _in_kept_groups(counts: Ints, router: RoutingRule) -> Bools:
    """Experts in kept groups, bool [tokens, experts]; their best two vote."""
    tokens, experts = counts.shape
    grouped = np.sort(counts.reshape(tokens, router.groups, -1), axis=2)
    votes = grouped[:, :, -2:].sum(axis=2)
    kept = np.argsort(-votes, axis=1, kind="stable")[:, : router.kept]
    group = np.arange(experts) // (experts // router.groups)
    inside: Bools = (group[None, :, None] == kept[:, None, :]).any(axis=2)
    return inside


def _draw(
    rng: np.random.Generator, tokens: int, experts: int, top_k: int, exponent: float
) -> Ints:
    """Tokens of each expert in one power-law draw, int64 [experts]."""
    slots, power = tokens * top_k, 1.0 - exponent
    few = slots <= experts
    low, high = BOUNDS_FEW if few else (BOUNDS_MANY[0], BOUNDS_MANY[1] * tokens)
    at = rng.random(experts)
    shares: Floats = ((high**power - low**power) * at + low**power) ** (1.0 / power)
    counts: Ints = np.rint(shares / shares.sum() * slots).astype(np.int64)
    np.minimum(counts, tokens, out=counts)
    while (missing := slots - int(counts.sum())) > 0:
        counts[np.argsort(counts, kind="stable")[:missing]] += 1
    while (spare := int(counts.sum()) - slots) > 0:
        largest = np.argsort(-counts, kind="stable")[:spare]
        counts[largest] -= counts[largest] > 0
    return counts
