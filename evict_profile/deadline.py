"""When a command that measures stops: at a wall time, or at Ctrl-C."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

STDERR = 2
STOPPING = b"\nstopping when what is under way is done; Ctrl-C again stops now\n"


@dataclass
class Deadline:
    at_monotonic: float = float("inf")
    interrupted: bool = False

    def reached(self) -> bool:
        return self.interrupted or self.seconds_left() <= 0.0

    def seconds_left(self) -> float:
        return self.at_monotonic - time.monotonic()


@contextmanager
def interruptible(deadline: Deadline) -> Iterator[Deadline]:
    """The first Ctrl-C ends the sample in flight; a second one ends the process."""

    def stop(number: int, frame: FrameType | None) -> None:
        deadline.interrupted = True
        deadline.at_monotonic = min(deadline.at_monotonic, time.monotonic())
        signal.signal(signal.SIGINT, before)
        # A signal may come within a print, which cannot be entered twice.
        os.write(STDERR, STOPPING)

    before = signal.signal(signal.SIGINT, stop)
    if before is signal.SIG_IGN:  # A shell's job in the background: not for us.
        signal.signal(signal.SIGINT, before)
    try:
        yield deadline
    finally:
        signal.signal(signal.SIGINT, before)
