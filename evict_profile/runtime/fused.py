"""The decision in three Triton kernels, for pools that a GPU can compare pairwise.

As tensor operations the decision is a dozen small kernels around a sort, and each costs
more to launch than to run. Nodes are few, so a node's place in its pool is simply
counted: how many are better, or equal and before it. That is a stable sort without a
sort, it spreads over the whole GPU, and it makes the kept set a comparison of places
with k. Between the two stands one scan over a pool's sums.

1. `_rank`: the place of each node in its pool, by counting; its gain goes there.
2. `_choose`: one program sums the pools, scans, scores every k and takes the best.
3. `_keep`: places under k, and their number for each request.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from evict_profile.runtime.decision import LARGEST_PROBABILITY, Rule
from evict_profile.runtime.on_device import Calibrate, Decision

MOST_IN_POOL = 16_384
"""One program's scan holds no more, and beyond it n^2 pairs cost more than a sort."""

MINE, OTHERS = 32, 256
"""Nodes that one program places, and nodes that it compares them with at a time."""


def decide(
    path_prob: Tensor,
    costs: Tensor,
    rule: Rule,
    terms: Tensor,
    calibrate: Calibrate | None,
) -> Decision:
    """As `on_device.decide`; pools hold at most MOST_IN_POOL."""
    path_prob = path_prob.contiguous()
    batch, nodes = path_prob.shape
    pools = rule.pools(batch)
    size = batch * nodes // pools
    programs = triton.cdiv(size, MINE)
    gains = path_prob if calibrate is None else calibrate(path_prob)

    def empty(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=path_prob.device)

    places = empty(pools, size, dtype=torch.int32)
    ordered = empty(pools, size, dtype=torch.float64)
    unsound = empty(pools, programs, dtype=torch.int32)
    _rank[(pools, programs)](
        path_prob, gains, places, ordered, unsound, size,
        LARGEST_PROBABILITY, MINE, OTHERS,
    )  # fmt: skip
    k, tokens = (empty(1, dtype=torch.int64)[0] for _ in range(2))
    claimed, cost = (empty(1, dtype=torch.float64)[0] for _ in range(2))
    refused = empty(1, dtype=torch.bool)[0]
    _choose[(1,)](
        ordered, costs, terms, unsound, k, tokens, claimed, cost, refused,
        batch, pools, size, len(costs), pools * programs,
        rule.objective == "rate", triton.next_power_of_2(max(size, 2)), OTHERS,
    )  # fmt: skip
    keep = empty(batch, nodes, dtype=torch.bool)
    widths = empty(batch, dtype=torch.int64)
    _keep[(batch,)](places, k, keep, widths, nodes, triton.next_power_of_2(nodes))
    return Decision(widths, keep, tokens, claimed, cost, refused)


@triton.jit  # type: ignore[untyped-decorator]
def _rank(
    path_prob: Any, gains: Any, places: Any, ordered: Any, unsound: Any, size: Any,
    largest: Any, MINE: tl.constexpr, OTHERS: tl.constexpr,
) -> None:  # fmt: skip
    pool, part = tl.program_id(0), tl.program_id(1)
    first = pool * size
    mine = part * MINE + tl.arange(0, MINE)
    inside = mine < size
    raw = tl.load(path_prob + first + mine, mask=inside, other=0.0)
    sound = (raw >= 0.0) & (raw <= largest)
    value = tl.where(sound, raw, 0.0)[:, None]
    place = tl.zeros([MINE], dtype=tl.int32)
    for start in range(0, size, OTHERS):
        others = start + tl.arange(0, OTHERS)
        there = tl.load(path_prob + first + others, mask=others < size, other=-1.0)
        clean = (there >= 0.0) & (there <= largest)
        other = tl.where(clean | (others >= size), there, 0.0)[None, :]
        before = others[None, :] < mine[:, None]
        ahead = (other > value) | ((other == value) & before)
        place += tl.sum(ahead.to(tl.int32), axis=1)
    gain = tl.load(gains + first + mine, mask=inside, other=0.0).to(tl.float64)
    tl.store(places + first + mine, place, mask=inside)
    tl.store(ordered + first + place, tl.where(sound, gain, 0.0), mask=inside)
    bad = tl.max((inside & (sound == 0)).to(tl.int32), axis=0)
    tl.store(unsound + pool * tl.num_programs(1) + part, bad)


@triton.jit  # type: ignore[untyped-decorator]
def _choose(
    ordered: Any, costs: Any, terms: Any, unsound: Any,
    k: Any, tokens: Any, gained: Any, cost: Any, refused: Any,
    batch: Any, pools: Any, size: Any, sizes: Any, flags: Any,
    BY_RATE: tl.constexpr, BLOCK: tl.constexpr, FLAGS: tl.constexpr,
) -> None:  # fmt: skip
    node = tl.arange(0, BLOCK)
    gain = tl.zeros([BLOCK], dtype=tl.float64)
    for pool in range(0, pools):
        gain += tl.load(ordered + pool * size + node, mask=node < size, other=0.0)
    trust = tl.load(terms)
    start = (batch + tl.load(terms + 1)) / trust
    claimed = start + tl.cumsum(gain, axis=0)
    reachable = node + 1 < sizes
    price = tl.load(costs + 1 + node, mask=reachable, other=1.0)
    none_us = tl.load(costs)
    if BY_RATE:
        rate = tl.load(terms + 3) / trust
        score = claimed - rate * price
        none = start - rate * none_us
    else:
        us_before = tl.load(terms + 2)
        score = claimed / (us_before + price)
        none = start / (us_before + none_us)
    score = tl.where(reachable, score, float("-inf"))
    best = tl.max(score, axis=0)
    chosen = tl.min(tl.where(score == best, node + 1, BLOCK + 1), axis=0)
    chosen = tl.where(none >= best, 0, chosen)
    bad = tl.zeros([FLAGS], dtype=tl.int32)
    for first in range(0, flags, FLAGS):
        flag = first + tl.arange(0, FLAGS)
        bad = tl.maximum(bad, tl.load(unsound + flag, mask=flag < flags, other=0))
    any_bad = tl.max(bad, axis=0) > 0
    kept = tl.where(any_bad, sizes - 1, chosen)
    at_kept = node + 1 == kept
    sure = tl.sum(tl.where(at_kept, claimed - start, 0.0), axis=0)
    paid = tl.sum(tl.where(at_kept, price, 0.0), axis=0)
    tl.store(k, kept)
    tl.store(tokens, batch + kept * pools)
    tl.store(gained, sure)
    tl.store(cost, tl.where(kept == 0, none_us, paid))
    tl.store(refused, any_bad)


@triton.jit  # type: ignore[untyped-decorator]
def _keep(
    places: Any, k: Any, keep: Any, widths: Any, nodes: Any, BLOCK: tl.constexpr
) -> None:
    row, node = tl.program_id(0), tl.arange(0, BLOCK)
    inside = node < nodes
    place = tl.load(places + row * nodes + node, mask=inside, other=0)
    kept = (place < tl.load(k)) & inside
    tl.store(keep + row * nodes + node, kept, mask=inside)
    tl.store(widths + row, 1 + tl.sum(kept.to(tl.int64), axis=0))
