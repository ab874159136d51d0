"""How a step grows with the tokens it verifies, where nobody measured it.

Over plain decoding, a step that verifies n tokens of each request takes about
n^EXPONENT plain steps: one constant, fitted to public runs, each server left out in
turn (`python -m benchmarks.served`). From one measured width n0 the step at another
width is r0 (n / n0)^OWN_EXPONENT. What moves the exponents (host, engine, drafter) is
in no kernel's time, so both have the error of other servers.
"""

import math
from dataclasses import dataclass
from typing import Literal

from evict_profile.stats import Estimate

EXPONENT, ERROR = 0.37, 0.30
"""Of a server that nobody ran; ERROR is half of the 95 % interval, in logs."""

OWN_EXPONENT, OWN_ERROR = 0.2, 0.2
"""From one measured K to another, and half of the 95 % interval, in logs."""

BETWEEN_ERROR = 0.08
"""Half of the 95 % interval between two measured K, in logs."""

Basis = Literal[
    "measured", "other K", "other batch", "other servers", "table", "estimate"
]


@dataclass(frozen=True)
class StepRatio:
    """A step over the reference step, and what it rests on.

    Attributes:
        basis: "measured" of a run of these very settings; "table" of a sweep's table;
            "other K" and "other batch" of runs near by; "other servers" of no run;
            "estimate" of public kernel rows and other servers.
    """

    value: Estimate
    basis: Basis


def around(value: float, error: float) -> Estimate:
    """An estimate whose 95 % interval is a factor e^error to both sides."""
    return Estimate(value, value * math.exp(-error), value * math.exp(error))


def log_half_width(estimate: Estimate) -> float:
    """The larger of both halves of an interval, in logs."""
    return max(
        math.log(estimate.high / estimate.value),
        math.log(estimate.value / estimate.low),
    )


def unserved(width: int) -> StepRatio:
    """The step over plain decoding of a server that nobody ran."""
    if width == 1:
        return StepRatio(Estimate(1.0, 1.0, 1.0), "other servers")
    return StepRatio(around(width**EXPONENT, ERROR), "other servers")
