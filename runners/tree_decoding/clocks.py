"""Where the time of a step goes, and how fast the machine is just now.

One thread computes, so that both agree on a quiet machine; on a shared one a neighbour
adds to wall time, and much less to CPU time. On a GPU work is asynchronous, and both
wait for it; how the process waits is up to the driver, so wall time is what counts.
"""

import time
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from runners.tree_decoding.layout import CacheSlot, make_layout
from runners.tree_decoding.verifier import Verifier

REFERENCE_TOKENS, REFERENCE_CONTEXT = 8, 64
REFERENCE_RUNS = 7
"""Forwards whose median stands for a moment, where single ones are too noisy."""


@dataclass(frozen=True)
class Moment:
    """CPU time of the process and wall time, in microseconds."""

    cpu_us: float
    wall_us: float
    on_gpu: bool = False

    @property
    def us(self) -> float:
        """The primary clock: CPU time on a CPU, wall time on a GPU."""
        return self.wall_us if self.on_gpu else self.cpu_us

    def __sub__(self, earlier: "Moment") -> "Moment":
        cpu_us, wall_us = self.cpu_us - earlier.cpu_us, self.wall_us - earlier.wall_us
        return Moment(cpu_us, wall_us, self.on_gpu)


def now(device: torch.device) -> Moment:
    """This moment; waits for a GPU's work."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(device)
    cpu_ns = time.clock_gettime_ns(time.CLOCK_PROCESS_CPUTIME_ID)
    return Moment(cpu_ns / 1e3, time.perf_counter_ns() / 1e3, on_gpu)


@dataclass(frozen=True)
class StepTimes:
    """Parts of one step.

    Attributes:
        levels: drafting of each level, the question whether to included; the first
            holds the catching up.
        verify: the target's forward, from laying it out to the tokens it wants.
        step: all of it.
    """

    levels: tuple[Moment, ...]
    verify: Moment
    step: Moment

    @property
    def fixed(self) -> Moment:
        """What is neither drafting nor verification."""
        rest = self.step - self.verify
        for level in self.levels:
            rest = rest - level
        return rest


class Reference:
    """One small fixed forward: eight tokens of text behind 64 others.

    A machine that others share changes its speed by a half within minutes. So whatever
    is timed stands between two references, and is told at the speed of one of them.
    What the cache holds does not matter; the forward overwrites part of its slot.
    """

    def __init__(self, verifier: Verifier, text: Tensor, slot: int = 0) -> None:
        self.verifier, self.device = verifier, verifier.device
        chain = CacheSlot.chain(slot, REFERENCE_CONTEXT, REFERENCE_TOKENS)
        self.layout = make_layout([chain], verifier.cache)
        self.ids = text[:REFERENCE_TOKENS].long().to(self.device)

    @torch.inference_mode()
    def us(self) -> float:
        begun = now(self.device)
        self.verifier.verify(self.ids, self.layout)
        return (now(self.device) - begun).us

    def settled_us(self) -> float:
        """Median of several."""
        return median(self.us() for _ in range(REFERENCE_RUNS))
