"""The time of a step beside verification: what a table knows of it, and where not.

Levels are drafted one after another, so their time is a running sum over depth. It
hardly depends on what is drafted, and on the batch slowly: a batch that was not
measured takes the nearest in ratio, and says so.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any


@dataclass(frozen=True)
class DraftClock:
    """What a step takes beside verification at a batch size, in microseconds.

    Attributes:
        batch: requests that draft together.
        draft_us: time to draft to depth d, cumulative; d = 0..deepest, 0 at d = 0.
        fixed_us: the rest of a step of tree decoding: acceptance, caches, host.
        plain_fixed_us: the rest of a step of plain decoding, which drafts nothing.
    """

    batch: int
    draft_us: tuple[float, ...]
    fixed_us: float
    plain_fixed_us: float

    @property
    def deepest(self) -> int:
        """The deepest level whose time is known."""
        return len(self.draft_us) - 1

    @property
    def beside_us(self) -> tuple[float, ...]:
        """Time beside verification of a step that drafts to depth d."""
        drafted = (us + self.fixed_us for us in self.draft_us[1:])
        return (self.plain_fixed_us, *drafted)


@dataclass(frozen=True)
class Drafting:
    """Clocks by batch."""

    batches: tuple[DraftClock, ...]

    def at(self, batch: int) -> DraftClock:
        """The clock of a batch, or of the nearest in ratio."""
        return _nearest(self.batches, batch)

    @property
    def deepest(self) -> int:
        """The deepest level whose time is known at any batch."""
        return max(clock.deepest for clock in self.batches)

    def marks(self, batch: int) -> tuple[str, ...]:
        """What a price at this batch overlooks."""
        known = self.at(batch).batch
        return () if known == batch else (f"drafting of batch {batch} as of {known}",)


@lru_cache(256)
def _nearest(clocks: tuple[DraftClock, ...], batch: int) -> DraftClock:
    return min(clocks, key=lambda clock: abs(math.log(clock.batch / batch)))


def drafting_of(document: Mapping[str, Any]) -> Drafting:
    """Clocks as a table holds them.

    Raises:
        KeyError, TypeError, ValueError: it holds none.
    """
    clocks = tuple(
        DraftClock(
            int(each["batch"]),
            tuple(map(float, each["draft_us"])),
            float(each["fixed_us"]),
            float(each["plain_fixed_us"]),
        )
        for each in document["batches"]
    )
    if not clocks or any(clock.draft_us[0] != 0.0 for clock in clocks):
        raise ValueError("drafting needs a batch, and draft_us from 0")
    return Drafting(clocks)
