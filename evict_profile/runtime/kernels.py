"""The Triton kernels of the fused decision; `fused` says what they are for.

Arguments carry no types: Triton's compiler reads annotations as code.
"""

import triton
import triton.language as tl


@triton.jit
def rank(
    path_prob, gains, places, ordered, unsound, size,
    largest, MINE: tl.constexpr, OTHERS: tl.constexpr,
):  # fmt: skip
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


@triton.jit
def choose(
    ordered, costs, terms, unsound,
    k, tokens, gained, cost, refused,
    batch, pools, size, sizes, flags,
    BY_RATE: tl.constexpr, BLOCK: tl.constexpr, FLAGS: tl.constexpr,
):  # fmt: skip
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


@triton.jit
def keep_best(places, k, keep, widths, nodes, BLOCK: tl.constexpr):
    row, node = tl.program_id(0), tl.arange(0, BLOCK)
    inside = node < nodes
    place = tl.load(places + row * nodes + node, mask=inside, other=0)
    kept = (place < tl.load(k)) & inside
    tl.store(keep + row * nodes + node, kept, mask=inside)
    tl.store(widths + row, 1 + tl.sum(kept.to(tl.int64), axis=0))
