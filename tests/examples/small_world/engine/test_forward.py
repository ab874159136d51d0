"""One forward of verifier and draft head: against the target and drafter as trained,
one path at a time; and on another device than the CPU.

There is no GPU where tests run. The device "meta" computes nothing, but its tensors
know where they are; so every operation is watched for arguments of two devices.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from examples.small_world.engine.drafter import feature_layers
from examples.small_world.engine.head import DraftHead
from examples.small_world.engine.layout import CacheSlot, make_layout
from examples.small_world.engine.tree import ancestors
from examples.small_world.engine.verifier import (
    ActivatedExperts,
    Verifier,
    forced_routing,
    product,
)
from tests.examples.small_world.engine.decoding import Erratic, fixed, make_checkpoint
from tests.runners.cached_drafting import decode, empty_cache

ELSEWHERE = torch.device("meta")
ROOM, TOKENS = 40, 6


def ids(count, seed, vocab=12):
    return torch.randint(vocab, (count,), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def test_a_ragged_batch_of_trees_equals_each_path_by_itself(checkpoint, target):
    verifier = Verifier(checkpoint, 2, ROOM)
    contexts = [ids(7, 0), ids(11, 1)]
    for slot, known in enumerate(contexts):
        verifier.read(known, slot)
    parents = [np.array([-1, 0, 0, 2]), np.array([-1, -1])]
    fresh = [ids(5, 2), ids(3, 3)]
    slots = []
    for slot, (parent, known) in enumerate(zip(parents, contexts, strict=True)):
        seen = ancestors(parent)
        positions = len(known) + seen.sum(axis=1) - 1
        slots.append(CacheSlot(slot, len(known), seen, positions))
    layout = make_layout(slots, verifier.cache)
    found = verifier.verify(torch.cat(fresh), layout)
    row = 0
    for known, tokens, slot in zip(contexts, fresh, slots, strict=True):
        for node, seen in enumerate(slot.seen):
            path = torch.cat([known, tokens[torch.from_numpy(seen)]])
            alone = target(path[None])
            torch.testing.assert_close(
                found.logits[row], alone.logits[0, -1], rtol=1e-4, atol=1e-4
            )
            streams = [s[row] for s in found.streams]
            for mine, theirs in zip(streams, alone.features, strict=True):
                torch.testing.assert_close(mine, theirs[0, -1], rtol=1e-4, atol=1e-4)
            chosen = alone.routes[:, -1].sort(dim=-1).values
            assert torch.equal(found.routes[:, row].sort(dim=-1).values, chosen), node
            row += 1


@torch.inference_mode()
def test_forced_routes_are_obeyed(checkpoint):
    verifier = Verifier(checkpoint, 1, ROOM)
    layout = make_layout([CacheSlot.chain(0, 0, 2)], verifier.cache)
    x = torch.randn(2, 32, generator=torch.Generator().manual_seed(0))
    routes = torch.tensor([[[0, 1], [0, 1]]])
    out, ran = verifier.run_layer(0, x, layout, forced_routing(routes))
    natural, chosen = verifier.run_layer(0, x, layout)
    assert torch.equal(ran, routes[0])
    assert not torch.equal(chosen, ran) and not torch.equal(out, natural)


def test_features_are_read_where_the_drafter_reads():
    assert feature_layers(3) == (0, 1, 2)


def alone(checkpoint, target, ids, path):
    """The path probability of drafted tokens behind known ones, from scratch."""
    known = torch.tensor(ids)
    streams = [s[0, :-1] for s in target(known[None]).features]
    feature = checkpoint.drafter.feature(streams)
    rows = len(feature)
    cache = empty_cache(checkpoint.drafter)
    embedded = F.embedding(known[1:], target.embedding)
    mask = torch.ones(rows, rows, dtype=torch.bool).tril()
    out = decode(
        checkpoint.drafter, embedded, feature, torch.arange(rows), mask, cache
    )[-1:]
    prob = 1.0
    for step, token in enumerate(path):
        chances = checkpoint.drafter.logits(out, target.head).softmax(dim=-1)
        prob *= float(chances[0, token])
        embedded = target.embedding[token][None]
        at = torch.tensor([rows + step])
        out = decode(checkpoint.drafter, embedded, out, at, None, cache)
    return prob


def tokens_to(tree, request, node):
    path: list[int] = []
    while node >= 0:
        path.insert(0, int(tree.token[request, node]))
        node = int(tree.parent[request, node])
    return path


@torch.inference_mode()
def check(checkpoint, target, engine):
    trees, _, _ = engine.draft(fixed(4, 99))
    for request, known in enumerate(engine.requests):
        for node in range(trees.token.shape[1]):
            expected = alone(
                checkpoint, target, known.ids, tokens_to(trees, request, node)
            )
            np.testing.assert_allclose(
                trees.path_prob[request, node], expected, rtol=2e-3
            )


def test_path_probabilities_are_those_of_each_path_alone(decoder, checkpoint, target):
    check(checkpoint, target, decoder.start(2))


def test_after_steps_of_uneven_length_as_well(decoder, checkpoint, target):
    engine = decoder.start(3)
    for _ in range(5):
        engine.step(Erratic(2))
    check(checkpoint, target, engine)


class OneDevice(TorchDispatchMode):
    """Refuses operations on two devices; copies alone may go between them."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        kinds = {t.device.type for t in found if t.dim()}
        assert len(kinds) < 2 or "copy_" in str(func), f"{func} on {kinds}"
        return func(*args, **(kwargs or {}))


def without_host(self, x, routes, weights):
    rows = x.repeat_interleave(routes.shape[1], dim=0)
    gate, up = product(rows, self.gate_up, [1], [len(rows)]).chunk(2, dim=-1)
    out = product(gate * up, self.down, [1], [len(rows)])
    return (out.view(*routes.shape, -1) * weights.unsqueeze(-1)).sum(dim=1)


@pytest.fixture
def watched(monkeypatch):
    monkeypatch.setattr(ActivatedExperts, "__call__", without_host)
    with torch.inference_mode(), OneDevice():
        yield


@pytest.mark.usefixtures("watched")
def test_verification_and_commits():
    """Two requests of different widths; what was found is where it was computed."""
    target = Verifier(make_checkpoint(ELSEWHERE), 2, ROOM)
    found = verified(target, two_requests(target))
    assert found.logits.device == ELSEWHERE
    assert all(stream.device == ELSEWHERE for stream in found.streams)
    target.cache.move(np.array([1, 2]), np.array([3, 4]))
    assert target.cache.rows.device == ELSEWHERE


@pytest.mark.usefixtures("watched")
def test_drafting():
    """The head reads the target's streams, and its children stay there."""
    target = Verifier(make_checkpoint(ELSEWHERE), 2, ROOM)
    streams = verified(target, two_requests(target)).streams
    head = DraftHead(make_checkpoint(ELSEWHERE), 2, ROOM)
    own = [[s[:3] for s in streams], [s[4:5] for s in streams]]
    outs = head.catch_up([[1, 2, 3], [4]], own, [0, 0])
    assert all(t.device == ELSEWHERE for t in head.children(outs, 3))


def two_requests(target):
    slots = [CacheSlot.chain(0, 5, 4), CacheSlot.chain(1, 3, 2)]
    return make_layout(slots, target.cache)


def verified(target, layout):
    ids = torch.zeros(TOKENS, dtype=torch.int64, device=ELSEWHERE)
    return target.verify(ids, layout)
