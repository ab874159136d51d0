"""The verifier against the target as it was trained."""

import numpy as np
import torch

from runners.tree_decoding.checkpoint import Checkpoint
from runners.tree_decoding.layout import CacheSlot, causal, make_layout
from runners.tree_decoding.target import feature_layers
from runners.tree_decoding.tree import ancestors
from runners.tree_decoding.verifier import Verifier

CPU = torch.device("cpu")
ROOM = 40


def ids(count: int, seed: int, vocab: int = 12) -> torch.Tensor:
    """Random tokens."""
    return torch.randint(vocab, (count,), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def test_a_ragged_batch_of_trees_equals_each_path_by_itself(world: Checkpoint) -> None:
    verifier = Verifier(world.target, 2, ROOM, CPU)
    contexts = [ids(7, 0), ids(11, 1)]
    for slot, known in enumerate(contexts):
        count = len(known)
        own = CacheSlot(slot, 0, causal(count), np.arange(count))
        layout = make_layout([own], verifier.cache)
        verifier.verify(known, layout, verifier.routes(count))
    parents = [np.array([-1, 0, 0, 2]), np.array([-1, -1])]
    fresh = [ids(5, 2), ids(3, 3)]
    slots = []
    for slot, (parent, known) in enumerate(zip(parents, contexts, strict=True)):
        seen = ancestors(parent)
        positions = len(known) + seen.sum(axis=1) - 1
        slots.append(CacheSlot(slot, len(known), seen, positions))
    layout = make_layout(slots, verifier.cache)
    routes = verifier.routes(8)
    found = verifier.verify(torch.cat(fresh), layout, routes)
    row = 0
    for known, tokens, slot in zip(contexts, fresh, slots, strict=True):
        for node, seen in enumerate(slot.seen):
            path = torch.cat([known, tokens[torch.from_numpy(seen)]])
            alone = world.target(path[None])
            torch.testing.assert_close(
                found.logits[row], alone.logits[0, -1], rtol=1e-4, atol=1e-4
            )
            streams = [s[row] for s in found.streams]
            for mine, theirs in zip(streams, alone.features, strict=True):
                torch.testing.assert_close(mine, theirs[0, -1], rtol=1e-4, atol=1e-4)
            chosen = alone.routes[:, -1].sort(dim=-1).values
            assert torch.equal(routes[:, row].sort(dim=-1).values, chosen), node
            row += 1


@torch.inference_mode()
def test_forced_routes_are_obeyed_and_kept(world: Checkpoint) -> None:
    verifier = Verifier(world.target, 1, ROOM, CPU)
    layout = make_layout([CacheSlot(0, 0, causal(2), np.arange(2))], verifier.cache)
    x = torch.randn(2, 32, generator=torch.Generator().manual_seed(0))
    forced = torch.tensor([[0, 1], [0, 1]])
    out = verifier.run_layer(0, x, layout, forced, forced=True)
    free = verifier.routes(2)[0]
    natural = verifier.run_layer(0, x, layout, free, forced=False)
    assert forced.tolist() == [[0, 1], [0, 1]]
    assert not torch.equal(forced, free) and not torch.equal(out, natural)


def test_features_are_read_where_the_drafter_reads() -> None:
    assert feature_layers(3) == (0, 1, 2)
