"""The Triton kernels of routing within a budget; `budget_fused` says what they are for.

A probability is ranked by its bits: those of a float32 without a sign order as it does,
a NaN above all. Of equal keys the first expert is the better.

Arguments carry no types: Triton's compiler reads annotations as code.
"""

import triton
import triton.language as tl

TAKEN = tl.constexpr(-2)
"""The key of what cannot be picked, or not again."""

ASLEEP = tl.constexpr(-1)
"""The key of an expert that no token runs: picked only where nothing else is left."""


@triton.jit
def find_last(
    probabilities, last_key, last_expert, tokens, experts, top_k, row_step, step,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < tokens)[:, None] & (column < experts)[None, :]
    places = row[:, None] * row_step + column[None, :] * step
    value = tl.load(probabilities + places, mask=inside, other=0.0)
    keys = tl.where(inside, key_of(value), TAKEN)
    best, expert = pick(keys, column, BLOCK)
    for _ in range(1, top_k):
        keys = tl.where(column[None, :] == expert[:, None], TAKEN, keys)
        best, expert = pick(keys, column, BLOCK)
    tl.store(last_key + row, best, mask=row < tokens)
    tl.store(last_expert + row, expert, mask=row < tokens)


@triton.jit
def sum_up(
    probabilities, weights, last_key, last_expert, mass, woken,
    tokens, experts, row_step, step, weight_step,
    BY_RUN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    wanted = tl.zeros([ROWS, COLUMNS], dtype=tl.int32)
    for start in range(0, tokens, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < tokens)[:, None] & (column < experts)[None, :]
        places = row[:, None] * row_step + column[None, :] * step
        value = tl.load(probabilities + places, mask=inside, other=0.0)
        value = value.to(tl.float32)
        if last_key is not None:
            key = tl.load(last_key + row, mask=row < tokens, other=0)
            expert = tl.load(last_expert + row, mask=row < tokens, other=0)
            natural = runs(
                key_of(value), column[None, :], key[:, None], expert[:, None]
            )
            wanted |= (natural & inside).to(tl.int32)
            if BY_RUN:
                value = tl.where(natural, value, 0.0)
        if weights is not None:
            weight = tl.load(weights + row * weight_step, mask=row < tokens, other=0.0)
            value *= weight.to(tl.float32)[:, None]
        sums += tl.where(value == value, value, 0.0)
    tl.store(mass + column, tl.sum(sums, axis=0), mask=column < experts)
    if woken is not None:
        tl.store(woken + column, tl.max(wanted, axis=0), mask=column < experts)


@triton.jit
def route(
    probabilities, mass, last_key, last_expert, woken, topk_weights, topk_ids,
    tokens, experts, top_k, budget, row_step, step, smallest,
    RENORMALISE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    OTHERS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    own = tl.load(mass + column, mask=column < experts, other=float("-inf"))
    rank = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, experts, OTHERS):
        others = start + tl.arange(0, OTHERS)
        other = tl.load(mass + others, mask=others < experts, other=float("-inf"))
        equal = other[:, None] == own[None, :]
        before = others[:, None] < column[None, :]
        ahead = (other[:, None] > own[None, :]) | (equal & before)
        rank += tl.sum(ahead.to(tl.int32), axis=0)
    kept = (rank < budget) & (column < experts)
    inside = (row < tokens)[:, None] & kept[None, :]
    places = row[:, None] * row_step + column[None, :] * step
    value = tl.load(probabilities + places, mask=inside, other=0.0)
    keys = key_of(value)
    if woken is not None:
        awake = tl.load(woken + column, mask=column < experts, other=0)
        keys = tl.where(awake[None, :] > 0, keys, ASLEEP)
        last = tl.load(last_key + row, mask=row < tokens, other=0)
        at = tl.load(last_expert + row, mask=row < tokens, other=0)
    keys = tl.where(kept[None, :], keys, TAKEN)
    slot = tl.arange(0, SLOTS)[None, :]
    chosen = tl.zeros([ROWS, SLOTS], dtype=tl.float32)
    ids = tl.zeros([ROWS, SLOTS], dtype=tl.int32)
    for place in range(0, top_k):
        best, expert = pick(keys, column, BLOCK)
        keys = tl.where(column[None, :] == expert[:, None], TAKEN, keys)
        weight = best.to(tl.float32, bitcast=True)
        if woken is not None:
            weight = tl.where(runs(best, expert, last, at), weight, 0.0)
        chosen = tl.where(slot == place, weight[:, None], chosen)
        ids = tl.where(slot == place, expert[:, None], ids)
    if RENORMALISE:
        total = tl.sum(chosen, axis=1)
        # Not tl.maximum, which takes a number for a NaN.
        total = tl.where(total < smallest, smallest, total)
        chosen = tl.div_rn(chosen, tl.broadcast_to(total[:, None], [ROWS, SLOTS]))
    to = row[:, None] * top_k + slot
    written = (row < tokens)[:, None] & (slot < top_k)
    tl.store(topk_weights + to, chosen, mask=written)
    tl.store(topk_ids + to, ids.to(tl.int64), mask=written)


@triton.jit
def key_of(value):
    return value.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def pick(keys, column, BLOCK: tl.constexpr):
    best = tl.max(keys, axis=1)
    ties = tl.where(keys == best[:, None], column[None, :], BLOCK)
    return best, tl.min(ties, axis=1)


@triton.jit
def runs(key, expert, last_key, last_expert):
    return (key > last_key) | ((key == last_key) & (expert <= last_expert))
