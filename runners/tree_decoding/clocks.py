"""Where the time of a step goes: CPU time of the process, and wall time beside it.

One thread computes, so that both agree on a quiet machine; on a shared one a neighbour
adds to wall time, and much less to CPU time. On a GPU work is asynchronous, and both
wait for it.
"""

import time
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Moment:
    """CPU time of the process and wall time, in microseconds."""

    cpu_us: float
    wall_us: float

    def __sub__(self, earlier: "Moment") -> "Moment":
        return Moment(self.cpu_us - earlier.cpu_us, self.wall_us - earlier.wall_us)

    def __add__(self, other: "Moment") -> "Moment":
        return Moment(self.cpu_us + other.cpu_us, self.wall_us + other.wall_us)


def now(device: torch.device) -> Moment:
    """This moment; waits for a GPU's work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    cpu_ns = time.clock_gettime_ns(time.CLOCK_PROCESS_CPUTIME_ID)
    return Moment(cpu_ns / 1e3, time.perf_counter_ns() / 1e3)


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
