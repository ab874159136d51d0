"""When a cell has been measured enough: its noise is low, or is stable.

More samples narrow the interval of a median with the square root of their number,
but only while the spread they estimate is still moving. nvbench's rule: stop when
the noise is low *or has stopped falling*. (Order statistics need no shape.)
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from evict_profile.config import StopSpec
from evict_profile.stats import median_interval, relative_spread

Outcome = Literal["open", "precise", "stable", "capped"]

STABLE_WINDOW = 6
STABLE_CHANGE = 0.05


def outcome(latencies: Sequence[float], rule: StopSpec) -> Outcome:
    """Whether a cell is done, and why, from its latencies in the order measured.

    "precise": the median's interval is narrow enough. "stable": over the last six
    samples the relative spread changed by less than 5 % of itself, so that more
    samples would buy little. "capped": the most samples allowed have been taken.
    """
    count = len(latencies)
    if count < rule.min_samples:
        return "open"
    if median_interval(latencies).relative_half_width <= rule.relative_half_width:
        return "precise"
    if count >= rule.max_samples:
        return "capped"
    return "stable" if _spread_is_stable(latencies, rule) else "open"


def samples_needed(latencies: Sequence[float], rule: StopSpec) -> int:
    """A guess at how many samples a cell still needs, for the time left."""
    count = len(latencies)
    if count < rule.min_samples:
        return rule.min_samples - count
    if outcome(latencies, rule) != "open":
        return 0
    ratio = median_interval(latencies).relative_half_width / rule.relative_half_width
    return max(1, min(rule.max_samples, round(count * ratio**2)) - count)


def _spread_is_stable(latencies: Sequence[float], rule: StopSpec) -> bool:
    count = len(latencies)
    if count < rule.min_samples + STABLE_WINDOW:
        return False
    ends = range(count - STABLE_WINDOW, count + 1)
    spreads = np.array([relative_spread(latencies[:end]) for end in ends])
    return bool(np.ptp(spreads) < STABLE_CHANGE * spreads.mean())
