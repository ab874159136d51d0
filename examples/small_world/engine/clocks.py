"""Where the time of a step goes, and the reference of the machine's speed."""

from dataclasses import dataclass

import torch
from torch import Tensor

from examples.small_world.engine.layout import CacheSlot, make_layout
from examples.small_world.engine.verifier import Verifier
from runners.clock import ReferenceClock, Timestamp, now

REFERENCE_TOKENS, REFERENCE_CONTEXT = 8, 64
CLOCKS = {"cpu": "process CPU time", "cuda": "wall time"}


@dataclass(frozen=True)
class StepTimes:
    """Of one step: drafting of each level, the question whether to included; the
    target's forward, from laying it out to the tokens it wants; and all of it."""

    levels: tuple[Timestamp, ...]
    verify: Timestamp
    step: Timestamp

    @property
    def fixed(self) -> Timestamp:
        """What is neither drafting nor verification."""
        rest = self.step - self.verify
        for level in self.levels:
            rest = rest - level
        return rest


def make_clock(verifier: Verifier, text: Tensor, slot: int = 0) -> ReferenceClock:
    """A clock whose reference is one small forward: 8 tokens of text behind 64 others.

    A machine that others share changes its speed by a half within minutes. What the
    cache holds does not matter; the forward overwrites part of its slot.
    """
    chain = CacheSlot.chain(slot, REFERENCE_CONTEXT, REFERENCE_TOKENS)
    layout = make_layout([chain], verifier.cache)
    device = verifier.device
    ids = text[:REFERENCE_TOKENS].long().to(device)

    @torch.inference_mode()
    def reference() -> None:
        verifier.verify(ids, layout)

    name = f"{CLOCKS[device.type]} over reference"
    return ReferenceClock(name, lambda: now(device), reference)
