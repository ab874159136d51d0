"""What every runner that measures cells answers alike. Standard library only."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runners.protocol import Message, Refusal


@dataclass(frozen=True)
class Reading:
    """One timed run, in microseconds; `reference_us` is NaN where none was timed."""

    clock_us: float
    wall_us: float
    reference_us: float


def sample(
    seed: int,
    reading: Reading,
    width: int,
    unions: Sequence[int],
    tier: int = 0,
    backend: str = "eager",
) -> Message:
    """One sample of the protocol (evict_profile/cells.py says what each field is).

    Args:
        seed: what its tokens, tree and routes were drawn by.
        reading: its times.
        width: tokens a request that ran.
        unions: distinct experts of each MoE layer that ran; none for "non_moe".
        tier: the captured width that ran; 0 in eager mode.
        backend: "graph" or "eager".
    """
    return {
        "seed": seed,
        "clock_us": reading.clock_us,
        "wall_us": reading.wall_us,
        "reference_us": reading.reference_us,
        "observed_width": width,
        "observed_union": sum(unions) / len(unions) if unions else float("nan"),
        "union_low": min(unions, default=0),
        "union_high": max(unions, default=0),
        "tier": tier,
        "backend": backend,
        "at_unix": time.time(),
    }


def check_shape(
    asked_and_found: Mapping[str, tuple[object, object]],
    kind: str,
    found_in: str,
    fix: str,
) -> None:
    """Check that the engine loaded the model that the sweep describes.

    Args:
        asked_and_found: by the name of a size, the sweep's value and the engine's.
        kind: of the refusal.
        found_in: where the engine's values come from, for the message.
        fix: what to do, an imperative.
    """
    for name, (asked, found) in asked_and_found.items():
        if asked != found:
            raise Refusal(
                kind,
                f"{name}: {asked} in the sweep's model, {found} in {found_in}; {fix}",
            )


def source_digest(module: str) -> str:
    """Digest of the code of a runner, given the `__file__` of one of its modules."""
    digest = hashlib.sha256()
    for path in sorted(Path(module).parent.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]
