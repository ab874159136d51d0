"""What a small world is worth: its text, its routing, its drafts and their price.

Tokens per step are those of greedy decoding, found without decoding: the target's own
continuations of held-out prompts are computed first, and the walk of a draft tree over
them is what a lossless engine would commit. The tree is EAGLE-2's (arXiv 2406.16858):
each depth expands the best nodes by path probability, then the best nodes overall stay.

    python benchmarks/small_world.py runs/world     # three minutes on two cores
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from runners.small_world.drafter import DraftCache
from runners.small_world.health import mean_union, routing_health, uniform_union
from runners.small_world.target import Pass
from runners.small_world.text import read_corpus, standard_library
from runners.small_world.tokens import Tokens, encode_corpus
from runners.small_world.weights import SmallWorld, load_world, make_stack, runner_shape
from runners.torch_moe.attention import make_seat
from runners.torch_moe.noise import Noise
from runners.torch_moe.stack import Stack

LENGTH, SEQUENCES = 256, 96
DRAFT_STEPS = 5
WIDTHS = (1, 4, 16, 32, 60)
PROMPTS, PROMPT, FRESH = 16, 128, 64
FAN, DEPTH = 8, 5
DEPTHS = (3, DEPTH)
TREES = (4, 16, 32, 60)
CONTEXT, REPEATS = 128, 41


@dataclass(frozen=True)
class Node:
    """A draft node: its parent's index (-1: the root), token, depth from 1 and path
    probability."""

    parent: int
    token: int
    depth: int
    score: float


def held_out_pass(world: SmallWorld, ids: Tensor) -> Pass:
    """The target over ids [B, T], a few sequences at a time."""
    parts = [world.target(some) for some in ids.split(16)]
    return Pass(
        logits=torch.cat([p.logits for p in parts]),
        features=[
            torch.cat(streams)
            for streams in zip(*(p.features for p in parts), strict=True)
        ],
        routes=torch.cat([p.routes for p in parts], dim=1),
        balance=torch.stack([p.balance for p in parts]).mean(),
        entropy=torch.stack([p.entropy for p in parts]).mean(),
    )


def language(world: SmallWorld, tokens: Tokens, workload: str) -> dict[str, object]:
    """Held-out loss, routing and drafts over the text as it is written."""
    stream = tokens.held_out[workload]
    count = min(SEQUENCES, len(stream) // LENGTH)
    ids = stream[: count * LENGTH].view(count, LENGTH).long()
    found = held_out_pass(world, ids)
    nats = F.cross_entropy(found.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    shape = world.target.shape
    health = routing_health(found.routes, float(found.entropy), shape.experts)
    return {
        "nats_per_token": float(nats),
        "bits_per_byte": float(nats) / 0.6931471806 / tokens.bytes_per_token[workload],
        "routing": str(health),
        "union": {
            n: (
                round(mean_union(found.routes, n), 1),
                round(uniform_union(shape.experts, shape.top_k, n), 1),
            )
            for n in WIDTHS
        },
        **agreement(world, ids, found),
    }


def agreement(world: SmallWorld, ids: Tensor, found: Pass) -> dict[str, list[float]]:
    """How often the target's best token is among the drafter's, by draft step."""
    embedded = F.embedding(ids[:, 1:], world.target.embedding)
    feature = world.drafter.feature([s[:, :-1] for s in found.features])
    kept: dict[str, list[float]] = {"top1": [], "top4": [], "top8": []}
    for step, out in enumerate(world.drafter.unroll(embedded, feature, DRAFT_STEPS)):
        logits = world.drafter.logits(out[:, step:], world.target.head)
        best = found.logits[:, 1 + step :].argmax(dim=-1, keepdim=True)
        hits = logits.topk(8, dim=-1).indices == best
        for name, row in kept.items():
            row.append(
                round(float(hits[..., : int(name[3:])].any(-1).float().mean()), 3)
            )
    return kept


def continue_greedily(world: SmallWorld, ids: Tensor, fresh: int) -> Tensor:
    """Ids [B, T] and so many of the target's best tokens behind them."""
    for _ in range(fresh):
        best = world.target(ids).logits[:, -1].argmax(dim=-1, keepdim=True)
        ids = torch.cat([ids, best], dim=1)
    return ids


@dataclass(frozen=True)
class Level:
    """The nodes of one depth that are expanded: their indices, what the drafter put
    out for them, and which rows of the cache each sees."""

    nodes: list[int]
    outs: Tensor
    seen: Tensor


class Sketch:
    """Draws draft trees anywhere in one known sequence."""

    def __init__(self, world: SmallWorld, ids: Tensor) -> None:
        found = world.target(ids[None])
        self.drafter, self.target = world.drafter, world.target
        feature = world.drafter.feature([s[0, :-1] for s in found.features])
        self.cache = world.drafter.empty_cache()
        rows = len(feature)
        causal = torch.ones(rows, rows, dtype=torch.bool).tril()
        self.trees: dict[int, list[Node]] = {}
        self.outs = self.decode(
            ids[1:], feature, torch.arange(rows), causal, self.cache
        )

    def decode(
        self, ids: Tensor, feature: Tensor, at: Tensor, seen: Tensor, cache: DraftCache
    ) -> Tensor:
        """One draft step over rows [T, D]."""
        embedded = F.embedding(ids, self.target.embedding)
        return self.drafter.decode(embedded, feature, at, seen, cache)

    def tree(self, rows: int) -> list[Node]:
        """All nodes drafted behind the first `rows` pairs."""
        if rows not in self.trees:
            self.trees[rows] = self.draw(rows)
        return self.trees[rows]

    def draw(self, rows: int) -> list[Node]:
        """Draft level by level."""
        cache = DraftCache(self.cache.keys, self.cache.values)
        cache.keep(rows)
        seen = torch.ones(1, rows, dtype=torch.bool)
        level = Level([-1], self.outs[rows - 1][None], seen)
        nodes: list[Node] = []
        for depth in range(DEPTH):
            first = len(nodes)
            nodes += self.children(nodes, level, depth + 1)
            if depth < DEPTH - 1:
                level = self.expand(nodes, first, level, rows + depth, cache)
        return nodes

    def expand(
        self, nodes: list[Node], first: int, above: Level, at: int, cache: DraftCache
    ) -> Level:
        """Draft from the best nodes from `first` on."""
        ranked = sorted(range(first, len(nodes)), key=lambda i: -nodes[i].score)
        chosen = ranked[:FAN]
        origin = torch.tensor([above.nodes.index(nodes[i].parent) for i in chosen])
        own = torch.eye(len(chosen), dtype=torch.bool)
        seen = torch.cat([above.seen[origin], own], dim=1)
        ids = torch.tensor([nodes[i].token for i in chosen])
        positions = torch.full((len(chosen),), at)
        outs = self.decode(ids, above.outs[origin], positions, seen, cache)
        return Level(chosen, outs, seen)

    def children(self, nodes: list[Node], level: Level, depth: int) -> list[Node]:
        """The best next tokens of each node of a level."""
        best = self.drafter.logits(level.outs, self.target.head).softmax(-1).topk(FAN)
        scores = [nodes[i].score if i >= 0 else 1.0 for i in level.nodes]
        return [
            Node(index, token, depth, score * chance)
            for index, score, chances, tokens in zip(
                level.nodes, scores, *(t.tolist() for t in best), strict=True
            )
            for chance, token in zip(chances, tokens, strict=True)
        ]


def accepted(nodes: list[Node], size: int, depth: int, wanted: list[int]) -> int:
    """Tokens of `wanted` that the best `size` nodes down to a depth hold as a path."""
    reached = [i for i, node in enumerate(nodes) if node.depth <= depth]
    ranked = sorted(reached, key=lambda i: -nodes[i].score)[:size]
    by_edge = {(nodes[i].parent, nodes[i].token): i for i in ranked}
    at, count = -1, 0
    for token in wanted:
        if (at, token) not in by_edge:
            break
        at, count = by_edge[at, token], count + 1
    return count


def walk(sketch: Sketch, ids: list[int], size: int, depth: int) -> tuple[int, int]:
    """Tokens committed and steps taken over the known continuation."""
    at, steps = PROMPT, 0
    while at + DEPTH + 1 < len(ids):
        nodes = sketch.tree(at - 1)
        at += 1 + accepted(nodes, size, depth, ids[at : at + DEPTH])
        steps += 1
    return at - PROMPT, steps


def decoding(world: SmallWorld, tokens: Tokens, workload: str) -> dict[str, object]:
    """Tokens a step of greedy decoding, by draft depth and nodes of the tree."""
    stream = tokens.held_out[workload]
    starts = torch.linspace(0, len(stream) - PROMPT - 1, PROMPTS).long()
    prompts = stream[starts.unsqueeze(1) + torch.arange(PROMPT)].long()
    whole = continue_greedily(world, prompts, FRESH)
    sketches = [Sketch(world, ids) for ids in whole]
    out: dict[str, dict[int, float]] = {}
    for depth in DEPTHS:
        row = out[f"depth {depth}"] = {}
        for size in TREES:
            walks = [
                walk(s, ids.tolist(), size, depth)
                for s, ids in zip(sketches, whole, strict=True)
            ]
            done, steps = (sum(column) for column in zip(*walks, strict=True))
            row[size] = round(done / steps, 2)
    return {"tokens_per_step": out}


def median_ms(run: Callable[[], object]) -> float:
    """Median wall time of a call."""
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        run()
        times.append((time.perf_counter() - begun) * 1e3)
    return round(median(times[1:]), 2)


def verify_ms(world: SmallWorld, stack: Stack, ids: Tensor) -> float:
    """Wall time of one forward of the runner's target over ids [T]."""
    width, shape = len(ids), world.target.shape
    layers = runner_shape(shape, "float32")
    seat = make_seat(layers, 1, width, CONTEXT, torch.device("cpu"))
    seat.place(torch.ones(width, width).tril().bool())
    routes = torch.zeros(shape.layers, width, shape.top_k, dtype=torch.int64)

    def verify() -> Tensor:
        x = F.embedding(ids, stack.embedding)
        x = stack.run_layers(x, seat, routes, False)
        return F.linear(F.rms_norm(x, x.shape[-1:]), stack.head)

    return median_ms(verify)


def draft_ms(world: SmallWorld, rows: int) -> float:
    """Wall time of one draft step of so many rows, best tokens included."""
    drafter, cache = world.drafter, world.drafter.empty_cache()
    x = torch.randn(CONTEXT, world.target.shape.hidden)
    full = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool)
    drafter.decode(x, x, torch.arange(CONTEXT), full, cache)
    seen = torch.ones(rows, CONTEXT + rows, dtype=torch.bool)

    def step() -> object:
        cache.keep(CONTEXT)
        at = torch.full((rows,), CONTEXT)
        out = drafter.decode(x[:rows], x[:rows], at, seen, cache)
        return drafter.logits(out, world.target.head).softmax(dim=-1).topk(FAN)

    return median_ms(step)


def prices(world: SmallWorld, ids: Tensor) -> dict[str, float]:
    """Wall times of target and draft steps in milliseconds, batch 1, two threads."""
    noise = Noise(torch.device("cpu"), torch.float32, 0)
    stack = make_stack(world.target, (1, CONTEXT + max(WIDTHS)), noise)
    ids = ids.long()
    out = {f"target_{n}": verify_ms(world, stack, ids[:n]) for n in WIDTHS}
    return out | {f"draft_{rows}": draft_ms(world, rows) for rows in (1, FAN)}


@torch.inference_mode()
def main(folder: Path) -> None:
    """Print everything as JSON."""
    torch.set_num_threads(2)
    world = load_world(folder)
    tokens = encode_corpus(read_corpus(standard_library(), False), world.tokenizer)
    models = {"target": world.target, "drafter": world.drafter}
    out: dict[str, object] = {
        f"{name}_parameters": sum(p.numel() for p in model.parameters())
        for name, model in models.items()
    }
    for workload in tokens.held_out:
        found = language(world, tokens, workload) | decoding(world, tokens, workload)
        out[workload] = found
    out["milliseconds"] = prices(world, tokens.held_out["code"])
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
