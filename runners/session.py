"""What runners that measure cells share: a session, its samples, its checks.

A runner derives its session from `MeasureSession`, sets what it is, and lays out the
forward of a cell in `prepare`; docs/reference/runner.md shows a whole one. Needs the
standard library only.
"""

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from runners.protocol import Message, Refusal

Run = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """One timed run, in microseconds; `reference_us` is NaN where none was timed."""

    clock_us: float
    reference_us: float


class Clock(Protocol):
    name: str

    def time(self, run: Run) -> Timing: ...


@dataclass(frozen=True)
class Forward:
    """The forward of a cell, ready to run.

    Attributes:
        run: runs it once.
        width: tokens a request that run, padding included.
        unions: distinct experts of each MoE layer that ran, read after the run; none
            for "non_moe".
        sizes: row counts of its products. A library compiles a kernel for a new one,
            so such a forward runs once before it is timed.
    """

    run: Run
    width: int
    unions: Callable[[], Sequence[float]]
    sizes: AbstractSet[int] = frozenset()


class MeasureSession(ABC):
    """An open model that measures cells: of `layers` MoE layers, or whole forwards."""

    fingerprint: Message
    layers: int
    clock: Clock
    bandwidth_gbps: float
    bytes_per_expert: int
    capture_sizes: Sequence[int] = ()
    whole = False

    def __init__(self) -> None:
        self.warm_sizes: set[int] = set()

    @abstractmethod
    def prepare(self, cell: Message, layers: int, seed: int) -> Forward:
        """Lay out one forward; the seed draws its tokens, trees and routes."""

    def refusal(self, error: Exception) -> Exception:
        """What an error of the engine becomes; as it is, it ends the runner."""
        return error

    def answer_open(self) -> Message:
        return {
            "fingerprint": self.fingerprint,
            "capture_sizes": list(self.capture_sizes),
            "bandwidth_gbps": self.bandwidth_gbps,
            "bytes_per_expert": self.bytes_per_expert,
            "whole": self.whole,
        }

    def measure(self, ask: Message) -> Message:
        cell, layers = ask["cell"], ask.get("layers") or self.layers
        if self.whole and (cell["part"] != "layers" or layers != self.layers):
            raise Refusal(
                "infeasible",
                f"{self.fingerprint['engine']} times whole forwards, neither some of "
                "their layers nor the rest apart; set 'whole: true' in the sweep",
            )
        try:
            return {"samples": [self.sample(cell, layers, s) for s in ask["seeds"]]}
        except (RuntimeError, ValueError) as error:
            raise self.refusal(error) from error

    def sample(self, cell: Message, layers: int, seed: int) -> Message:
        """Time one forward; what ran is read after the clock has stopped."""
        forward = self.prepare(cell, layers, seed)
        if self.are_new(forward.sizes):
            forward.run()
        return make_sample(self.time(forward), forward)

    def time(self, forward: Forward) -> Timing:
        """Time a forward that is ready."""
        return self.clock.time(forward.run)

    def are_new(self, sizes: AbstractSet[int]) -> bool:
        """Whether a product of one of these sizes has not run yet; it has then."""
        new = sizes - self.warm_sizes
        self.warm_sizes |= new
        return bool(new)


def make_sample(timing: Timing, forward: Forward) -> Message:
    """One sample of the protocol (evict_profile/cells.py says what each field is)."""
    unions = forward.unions()
    return {
        **asdict(timing),
        "observed_width": forward.width,
        "observed_union": sum(unions) / len(unions) if unions else float("nan"),
        "union_low": int(min(unions, default=0)),
        "union_high": int(max(unions, default=0)),
        "at_unix": time.time(),
    }


def check_shape(
    asked_and_found: Mapping[str, tuple[object, object]],
    kind: str,
    found_in: str,
    fix: str,
) -> None:
    """Refuse, as `kind`, an engine that loaded another model than the sweep describes.

    `asked_and_found` has the sweep's value and the engine's by the name of a size.
    """
    for name, (asked, found) in asked_and_found.items():
        if asked != found:
            raise Refusal(
                kind,
                f"{name}: {asked} in the sweep's model, {found} in {found_in}; {fix}",
            )


def source_digest(module: str) -> str:
    """Digest of the code of a runner: of the folder of a module, and of this one."""
    folders = {Path(module).resolve().parent, Path(__file__).resolve().parent}
    digest = hashlib.sha256()
    for folder in sorted(folders):
        for path in sorted(folder.glob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]
