"""How numbers read on a page and on a terminal: three digits, a unit, an interval."""

import math
from dataclasses import dataclass

from evict_profile.stats import Estimate, MedianInterval


@dataclass(frozen=True)
class Unit:
    """A unit of time in which a set of latencies reads well."""

    name: str
    microseconds: float

    def of(self, microseconds: float) -> str:
        """A latency with its unit, three digits: "12.3 ms"."""
        return f"{self.bare(microseconds)} {self.name}"

    def bare(self, microseconds: float) -> str:
        """As `of`, without the unit."""
        value = microseconds / self.microseconds
        digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
        return f"{value:,.{digits}f}"

    def range(self, interval: MedianInterval) -> str:
        """The bounds of an interval as `bare`; empty where it is unbounded."""
        known = math.isfinite(interval.high)
        return (
            f"{self.bare(interval.low)} to {self.bare(interval.high)}" if known else ""
        )


US, MS, SECONDS = Unit("us", 1.0), Unit("ms", 1e3), Unit("s", 1e6)


def unit_for(microseconds: float) -> Unit:
    """The unit in which a latency as large as this one is a short number."""
    if microseconds < 2e3:
        return US
    return MS if microseconds < 1e7 else SECONDS


def short(ratio: float) -> str:
    """A ratio in three digits."""
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"


def counted(count: int, noun: str) -> str:
    """A count with its noun: "1 cell", "1,200 cells"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def spread(estimate: Estimate, form: str = ".2f", scale: float = 1.0) -> str:
    """A number with its interval, if it has one: "1.23 (1.10..1.30)"."""
    value, low, high = (
        format(scale * end, form)
        for end in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} ({low}..{high})" if estimate.known and low != high else value
