"""The simulation once more, from its rules alone: lists, one step at a time."""

from dataclasses import dataclass, field

import numpy as np

from evict_profile.cost_model import padded_tokens
from tests.traces.steps import replies_of


@dataclass
class Slot:
    """A request: a reply, and how much of it is there."""

    steps: list
    tokens: int
    number: int = 0

    @property
    def step(self):
        return self.steps[self.number]


@dataclass
class Tally:
    tokens: int = 0
    us: float = 0.0
    steps: int = 0
    verified: int = 0
    unions: list[float] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)


def slow_simulate(trace, policy, table, batch, seed):
    order = np.random.default_rng(seed).permutation(len(trace.replies)).tolist()
    tally, replies = Tally(), replies_of(trace)

    def next_slot():
        number = order[len(tally.taken) % len(order)]
        tally.taken.append(number)
        return Slot(replies[number], int(trace.tokens[number]))

    slots = [next_slot() for _ in range(batch)]
    wanted = sum(trace.tokens)
    while tally.tokens < wanted:
        _one_step(trace, slots, policy, table, tally)
        slots = [slot if slot.number >= 0 else next_slot() for slot in slots]
    return tally


def _one_step(trace, slots, policy, table, tally):
    steps, nodes = [slot.step for slot in slots], trace.about.nodes
    context = sum(step.context for step in steps) / len(steps)
    asked = policy.begin(len(steps), context, nodes)
    depth = 0
    shown: list[list[int]] = [[] for _ in steps]
    before = [[-1] for _ in steps]
    while depth < policy.depth and asked.deeper():
        depth += 1
        before = _show(asked, steps, before, nodes, depth)
        for own, fresh in zip(shown, before, strict=True):
            own += fresh
    masks = asked.keep()
    kept = [
        np.array([n for n, k in zip(own, mask, strict=True) if k], dtype=int)
        for own, mask in zip(shown, masks.tolist(), strict=True)
    ]
    union = _union(steps, kept)
    tokens = len(steps) + sum(map(len, kept))
    us = _cost(table, tokens, union, len(slots), context, depth)
    committed = [s.committed(k) for s, k in zip(steps, kept, strict=True)]
    policy.observe(sum(committed), us)
    tally.us += us
    tally.steps += 1
    tally.verified += tokens
    tally.unions.append(union)
    for slot, gained in zip(slots, committed, strict=True):
        tally.tokens += min(gained, slot.tokens - slot.step.position)
        slot.number = _after(trace, slot, gained)


def _after(trace, slot, gained):
    position = slot.step.position + gained
    if position >= slot.tokens:
        return -1
    number = position if trace.dense else slot.number + 1
    return number if number < len(slot.steps) else -1


def _show(asked, steps, before, nodes, depth):
    """Show a level, family by family; its nodes by place, -1 for padding."""
    families = []
    for step, parents in zip(steps, before, strict=True):
        best = [n for n in step.best(nodes + 1, depth) if step.depth[n] == depth]
        groups = {p: [n for n in sorted(best) if step.parent[n] == p] for p in parents}
        held = {p: group for p, group in groups.items() if group}
        # Families in the order in which they were recorded.
        families.append(sorted(held.items(), key=lambda item: min(item[1])))
    most = max(1, *map(len, families))
    ranks = max([1, *(len(group) for each in families for _, group in each)])
    prob = np.zeros((len(steps), most, ranks))
    parent = np.zeros((len(steps), most), int)
    shown = []
    for row, (step, each) in enumerate(zip(steps, families, strict=True)):
        places = [-1] * (most * ranks)
        for family, (above, group) in enumerate(each):
            reached = 1.0 if above < 0 else step.path_prob[above]
            parent[row, family] = before[row].index(above)
            best_first = sorted(group, key=lambda n: -step.path_prob[n])
            for rank, node in enumerate(best_first):
                prob[row, family, rank] = step.path_prob[node] / reached
                places[family * ranks + rank] = node
        shown.append(places)
    asked.extend(prob, None if depth == 1 else parent)
    return shown


def _union(steps, kept):
    layers = steps[0].routes.shape[1]
    active: list[set[int]] = [set() for _ in range(layers)]
    for step, nodes in zip(steps, kept, strict=True):
        for node in [0, *(nodes + 1)]:
            for layer in range(layers):
                active[layer] |= set(step.routes[node, layer].tolist())
    return sum(map(len, active)) / layers


def _cost(table, tokens, union, batch, context, depth):
    run = padded_tokens(np.array([tokens]), batch, table.axes.capture_sizes)
    low, high = table.fit.domain["context"]
    least, most = table.fit.domain["batch"]
    verify_us = table.cost.latency_us(
        run,
        np.array([union]),
        min(max(context, low), high),
        min(max(batch, least), most),
    )
    assert table.drafting
    return float(verify_us[0]) + table.drafting.at(batch).beside_us(depth)
