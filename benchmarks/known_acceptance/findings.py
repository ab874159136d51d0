"""What a trial found beside what is so."""

from dataclasses import dataclass

from evict_profile.stats import Estimate


@dataclass(frozen=True)
class Finding:
    """One printed number; `error` and `half_width` are in its own unit.

    Attributes:
        what: which number.
        inside: whether the truth lies in its interval.
    """

    what: str
    inside: bool
    error: float
    half_width: float


def finding(what: str, told: Estimate, truth: float) -> Finding:
    """An estimate against the truth."""
    half_width = (told.high - told.low) / 2.0
    inside = bool(told.low <= truth <= told.high)
    return Finding(what, inside, abs(told.value - float(truth)), half_width)
