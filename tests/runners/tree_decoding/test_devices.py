"""On another device than the CPU no tensor is left behind.

There is no GPU where tests run. The device "meta" computes nothing, but its tensors
know where they are; so every operation is watched for arguments of two devices.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from runners.tree_decoding import verifier
from runners.tree_decoding.checkpoint import Checkpoint
from runners.tree_decoding.head import DraftHead, causal
from runners.tree_decoding.layout import CacheSlot, Layout, make_layout
from runners.tree_decoding.verifier import ActivatedExperts, Verified, Verifier, product

ELSEWHERE = torch.device("meta")
ROOM, TOKENS = 40, 6


class Watch(TorchDispatchMode):
    """Refuses operations on two devices; copies alone may go between them."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        kinds = {t.device.type for t in found if t.dim()}
        assert len(kinds) < 2 or "copy_" in str(func), f"{func} on {kinds}"
        return func(*args, **(kwargs or {}))


class Nothing:
    """Weights that are nowhere."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        self.block = torch.empty(1, device=device, dtype=dtype)

    def weight(self, *sizes: int) -> torch.Tensor:
        """A weight without values."""
        return self.block.new_empty(sizes)


def without_host(
    self: ActivatedExperts, x: torch.Tensor, routes: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Experts' products without asking the host which are awake."""
    rows = x.repeat_interleave(routes.shape[1], dim=0)
    gate, up = product(rows, self.gate_up, [1], [len(rows)]).chunk(2, dim=-1)
    out = product(gate * up, self.down, [1], [len(rows)])
    return (out.view(*routes.shape, -1) * weights.unsqueeze(-1)).sum(dim=1)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every operation is watched."""
    monkeypatch.setattr(verifier, "Noise", Nothing)
    monkeypatch.setattr(ActivatedExperts, "__call__", without_host)
    with torch.inference_mode(), Watch():
        yield


def test_the_watch_sees_two_devices() -> None:
    """Else the tests below would say nothing."""
    with Watch(), pytest.raises(AssertionError, match="mm"):
        torch.mm(torch.zeros(2, 2), torch.zeros(2, 2, device=ELSEWHERE))


@pytest.mark.usefixtures("watched")
def test_verification_and_commits(world: Checkpoint) -> None:
    """Two requests of different widths; what was found is where it was computed."""
    target = Verifier(world.target, 2, ROOM, ELSEWHERE)
    found = verified(target, two_requests(target))
    assert found.logits.device == ELSEWHERE
    assert all(stream.device == ELSEWHERE for stream in found.streams)
    target.cache.move(np.array([1, 2]), np.array([3, 4]))
    assert target.cache.rows.device == ELSEWHERE


@pytest.mark.usefixtures("watched")
def test_drafting(world: Checkpoint) -> None:
    """The head reads the target's streams, and its children stay there."""
    target = Verifier(world.target, 2, ROOM, ELSEWHERE)
    streams = verified(target, two_requests(target)).streams
    drafter = type(world.drafter)(world.target.shape, 32)
    head = DraftHead(drafter, world.target, 2, ROOM, ELSEWHERE)
    own = [[s[:3] for s in streams], [s[4:5] for s in streams]]
    outs = head.catch_up([[1, 2, 3], [4]], own, [0, 0])
    assert all(t.device == ELSEWHERE for t in head.children(outs, 3))


def two_requests(target: Verifier) -> Layout:
    """Four tokens behind five, and two behind three."""
    slots = [
        CacheSlot(0, 5, causal(4), 5 + np.arange(4)),
        CacheSlot(1, 3, causal(2), 3 + np.arange(2)),
    ]
    return make_layout(slots, target.cache)


def verified(target: Verifier, layout: Layout) -> Verified:
    """A forward of all of them."""
    ids = torch.zeros(TOKENS, dtype=torch.int64, device=ELSEWHERE)
    return target.verify(ids, layout, target.routes(TOKENS))
