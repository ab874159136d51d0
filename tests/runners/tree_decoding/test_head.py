"""The draft head in batches against the drafter on one path at a time."""

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from runners.tree_decoding.checkpoint import Checkpoint
from runners.tree_decoding.engine import Engine
from runners.tree_decoding.policy import Always
from runners.tree_decoding.tree import Trees
from tests.runners.cached_drafting import decode, empty_cache
from tests.runners.tree_decoding.decoding import Decoder, Erratic


def alone(world: Checkpoint, ids: list[int], path: list[int]) -> float:
    """The path probability of drafted tokens behind known ones, from scratch."""
    known = torch.tensor(ids)
    streams = [s[0, :-1] for s in world.target(known[None]).features]
    feature = world.drafter.feature(streams)
    rows = len(feature)
    cache = empty_cache(world.drafter)
    embedded = F.embedding(known[1:], world.target.embedding)
    mask = torch.ones(rows, rows, dtype=torch.bool).tril()
    out = decode(world.drafter, embedded, feature, torch.arange(rows), mask, cache)[-1:]
    prob = 1.0
    for step, token in enumerate(path):
        chances = world.drafter.logits(out, world.target.head).softmax(dim=-1)
        prob *= float(chances[0, token])
        embedded = world.target.embedding[token][None]
        at = torch.tensor([rows + step])
        out = decode(world.drafter, embedded, out, at, None, cache)
    return prob


def tokens_to(tree: Trees, request: int, node: int) -> list[int]:
    """Tokens from the root's child to a node."""
    path: list[int] = []
    while node >= 0:
        path.insert(0, int(tree.token[request, node]))
        node = int(tree.parent[request, node])
    return path


@torch.inference_mode()
def check(world: Checkpoint, engine: Engine) -> None:
    """Compare all nodes of all requests' trees."""
    trees, _ = engine.draft(Always(4, 99))
    for request, known in enumerate(engine.requests):
        for node in range(trees.token.shape[1]):
            expected = alone(world, known.ids, tokens_to(trees, request, node))
            np.testing.assert_allclose(
                trees.path_prob[request, node], expected, rtol=2e-3
            )


def test_path_probabilities_are_those_of_each_path_alone(
    decoder: Decoder, world: Checkpoint
) -> None:
    check(world, decoder.start(2))


def test_after_steps_of_uneven_length_as_well(
    decoder: Decoder, world: Checkpoint
) -> None:
    engine = decoder.start(3)
    for _ in range(5):
        engine.step(Erratic(2))
    check(world, engine)
