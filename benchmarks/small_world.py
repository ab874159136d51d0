"""What a small world is worth: its text, its routing and its drafts.

All over held-out text as it is written. How fast it decodes is for `evict-profile
trace` and `replay`, and benchmarks/wall_clock.py.

    python benchmarks/small_world.py runs/world     # a minute on two cores
"""

import argparse
import json
import sys
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from benchmarks.command import command
from runners.small_world.health import mean_union, routing_health, uniform_union
from runners.small_world.target import Pass
from runners.small_world.text import read_held_out, standard_library
from runners.small_world.tokens import Tokens, encode_corpus
from runners.small_world.weights import SmallWorld
from runners.tree_decoding.text import open_world

LENGTH, SEQUENCES = 256, 96
DRAFT_STEPS = 5
WIDTHS = (1, 4, 16, 32, 60)


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


@command
@torch.inference_mode()
def main(words: Sequence[str]) -> None:
    """Print everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("world", help="folder of a trained world")
    asked = parser.parse_args(words)
    torch.set_num_threads(2)
    world = open_world(asked.world)
    tokens = encode_corpus(read_held_out(standard_library()), world.tokenizer)
    models = {"target": world.target, "drafter": world.drafter}
    out: dict[str, object] = {
        f"{name}_parameters": sum(p.numel() for p in model.parameters())
        for name, model in models.items()
    }
    for workload in tokens.held_out:
        out[workload] = language(world, tokens, workload)
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
