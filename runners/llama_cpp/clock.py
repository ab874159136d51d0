"""The clock: a decode, between two reference decodes of the same model.

On a shared machine a decode follows the clock frequency and the memory bandwidth that
neighbours leave it. A reference of another kind, a stream of weights, follows the
second alone: held-out errors were twice as large. One thread is timed by its CPU time.
Of several threads that means nothing, and beside any other load they take up to thirty
times as long, since they wait for each other at every node: wall time, and an idle
machine, or none.
"""

import os
from collections.abc import Callable

import numpy as np

from runners.measuring import Reading
from runners.protocol import Refusal
from runners.torch_moe.clocks import process_us, wall_us

MAX_LOAD = 0.3
MAX_SPREAD = 0.10
"""Interquartile range of the reference over its median, where wall time is read."""
REFERENCES = 12

Run = Callable[[], None]


class DecodeClock:
    """Times runs in units of a reference run."""

    def __init__(self, reference: Run, wall: bool) -> None:
        self.reference, self.wall = reference, wall
        self.now = wall_us if wall else process_us
        kind = "wall time" if wall else "process CPU time"
        self.name = f"{kind} over a reference decode"
        self.time_reference()

    def check_idle(self) -> None:
        """Refuse wall time beside other work."""
        if not self.wall:
            return
        load = os.getloadavg()[0]
        times = [self.time_reference() for _ in range(REFERENCES)]
        low, middle, high = np.percentile(times, [25, 50, 75])
        spread = (high - low) / middle
        if load > MAX_LOAD or spread > MAX_SPREAD:
            raise Refusal(
                "device",
                f"the load is {load:.1f} and a reference decode spreads by "
                f"{spread:.0%}: several threads are timed on an idle machine alone "
                f"(load under {MAX_LOAD}, spread under {MAX_SPREAD:.0%}); quiet it, or "
                "set threads: 1",
            )

    def time_reference(self) -> float:
        """The reference now, in microseconds."""
        start = self.now()
        self.reference()
        return self.now() - start

    def alone_us(self, run: Run, ready: Run) -> float:
        """Time one run beside no reference; `ready` runs before it, untimed."""
        ready()
        start = self.now()
        run()
        return self.now() - start

    def time(self, run: Run, ready: Run) -> Reading:
        """Time one run between two references; `ready` runs before it, untimed."""
        before = self.time_reference()
        ready()
        wall, start = wall_us(), self.now()
        run()
        clock, wall = self.now() - start, wall_us() - wall
        return Reading(clock, wall, (before + self.time_reference()) / 2.0)
