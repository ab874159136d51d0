"""Numbers as text: three digits, a unit, an interval."""

from collections.abc import Callable
from typing import NamedTuple

from evict_profile.stats import Estimate


class Unit(NamedTuple):
    name: str
    microseconds: float

    def of(self, microseconds: float) -> str:
        """A latency with its unit: "12.3 ms"."""
        return f"{self.bare(microseconds)} {self.name}"

    def bare(self, microseconds: float) -> str:
        return three_digits(microseconds / self.microseconds)

    def spread(self, latency_us: Estimate) -> str:
        """As `bare`, with an interval if known: "12.3 (11.9..12.7)"."""
        return spread(latency_us, self.bare)


US, MS = Unit("us", 1.0), Unit("ms", 1e3)


def three_digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def spread(estimate: Estimate, form: str | Callable[[float], str] = ".2f") -> str:
    shown = form if callable(form) else f"{{:{form}}}".format
    value, low, high = map(shown, (estimate.value, estimate.low, estimate.high))
    return f"{value} ({low}..{high})" if estimate.known and low != high else value
