"""How a step grows with the tokens it verifies, where nobody measured it.

Over plain decoding, a step that verifies n tokens of each request takes about
n^EXPONENT plain steps. From one measured width n0 the step at another width is
r0 (n / n0)^OWN_EXPONENT. The constants are fitted to public runs, and their errors are
of servers that were left out in turn (`python -m benchmarks.served`). What moves the
exponents (host, engine, drafter) is in no kernel's time.
"""

import math
from dataclasses import dataclass
from typing import Literal

from evict_profile.stats import Estimate

EXPONENT, ERROR = 0.37, 0.50
"""Of a server that nobody ran, from 288 rows of 28 servers. ERROR is half of the 95 %
interval, in logs, as are all errors here."""

OWN_EXPONENT, OWN_ERROR = 0.28, 0.16
"""From one measured K to another of the same server, batch and text, from 296 pairs of
11 servers."""

BETWEEN_ERROR = 0.06
"""Of a power law between two measured K, from 51 of 10 servers."""

BATCH_ERROR = 0.08
"""How far the ratio of one K lies beyond those of two neighbours in batch, from 381 of
8 servers. It does not grow with their distance."""

FAR_ERROR = 0.33
"""How far the ratio of one K moves from one batch to another that is e times as large,
from 259 pairs of 9 servers. It grows with the root of the distance in logs, as a random
walk does."""

ESTIMATE_ERROR = 0.44
"""Of the geometric mean of a composed table's growth and n^EXPONENT, from 250 rows of
11 servers. Its median error is 6.5 %, that of n^EXPONENT 10.9 %. A draft model under
vLLM makes the interval, and no table knows it."""

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
    """The step over plain decoding of a server that nobody ran.

    No step that verifies more tokens takes less time than a plain one.
    """
    found = around(width**EXPONENT, ERROR if width > 1 else 0.0)
    return StepRatio(_at_least_plain(found), "other servers")


def estimated(grown: float, width: int) -> StepRatio:
    """The same of a composed table, whose forward takes `grown` plain ones.

    Host and drafter are in no kernel's time, so the growth of other servers' steps
    stands beside it with equal weight.
    """
    found = around(max(math.sqrt(grown * width**EXPONENT), 1.0), ESTIMATE_ERROR)
    return StepRatio(_at_least_plain(found), "estimate")


def _at_least_plain(found: Estimate) -> Estimate:
    return Estimate(found.value, max(found.low, 1.0), found.high)
