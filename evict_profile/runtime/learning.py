"""Two numbers of a server, learnt from its verifications and a table.

A verification of n tokens takes, by a table, C(n, k) where all tokens choose the same
experts, and a growth for the experts that they activate beyond these. A server differs
in its level (driver, clocks, build) and in its text, which activates more or fewer:

    observed = (1 + a) C(n, k) + growth(n) + b [C(n, U_uniform(n)) - C(n, k)]

A slope that is free in n would take one for the other. C(n, k) and C(n, U) were
measured with unions forced apart from n, so served steps alone identify a and b. Both
follow a random walk, and each step updates them by Kalman's filter (R. E. Kalman,
1960), in errors relative to C(n, k). Widths that are never chosen add nothing.

A level that stays outside `LEVELS`, or a growth above `MOST_SHARE`, is of another
machine. The bounds then open, and a few steps verify forced widths, which show what
decisions by wrong costs avoid. A forced width depends on no draft, as a fixed one.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from evict_profile.config.model import uniform_union
from evict_profile.cost_model import padded_tokens
from evict_profile.stats import Floats
from evict_profile.table import CostTable

PRIOR_SD = 0.1, 0.5
LEVEL_WALK_VAR, GROWTH_WALK_VAR = 0.001**2, 0.01**2
"""Of a and b: what is not known at first, and what a step may add."""

NOISE = 0.06
"""Of one verification's time, one standard deviation."""

MOST_SD = 5.0
"""A time further off, in standard deviations of the filter, counts as so far."""

SHARES = 0.0, 1.3
"""Bounds of the growth, in growths of uniform routing."""

BOUNDS = 0.5, 2.0
"""Of the level, over the table's."""

LEVELS, MOST_SHARE = (0.7, 1.3), 1.2
"""Of a machine like the table's: level over it, and growth in those of uniform routing,
which activates the most experts."""

OUTSIDE_STEPS = 16
"""In a row outside of them until they open."""

OPEN_LEVELS, OPEN_GROWTH, OPEN_SD = (0.1, 10.0), 20.0, (0.5, 1.0)
"""Bounds for a table of another machine, and what is then not known of a and b."""

FORCED = (0.25, 0.5, 1.0) * 2
"""Shares of the largest width, one a step."""

ERROR_MEMORY, MOST_ERROR = 0.5 ** (1.0 / 16.0), 0.3
"""Of the mean error of a cost; whole trees are verified above `MOST_ERROR`."""

LEAST_CHANGE = 0.01
"""Costs are read anew where one changed by more."""


class ForwardParts(NamedTuple):
    """Microseconds of a forward by tokens, or at one width: float64 [T + 1] each."""

    equal: Floats
    growth: Floats
    uniform: Floats

    @classmethod
    def of(cls, table: CostTable, batch: int, context: float) -> "ForwardParts":
        """ForwardParts of each number of tokens that the table covers for a batch."""
        least, most = table.fit.domain["batch"]
        covered = min(max(batch, least), most)
        asked = np.arange(table.max_tokens(batch) + 1)
        tokens = padded_tokens(asked, batch, table.axes.capture_sizes)
        moe = table.model.moe
        unions = (
            float(moe.top_k),
            table.activation.at(tokens, batch),
            uniform_union(moe.num_experts, moe.top_k, tokens),
        )
        equal, own, uniform = (
            table.cost.latency_us(tokens, union, context, covered) for union in unions
        )
        return cls(equal, np.maximum(own - equal, 0.0), uniform - equal)

    def at(self, tokens: int) -> tuple[float, float, float]:
        return (
            self.equal.item(tokens),
            self.growth.item(tokens),
            self.uniform.item(tokens),
        )


class Learnt(Struct, frozen=True):
    """What a learner knows, and the table that it belongs to, as a file holds it."""

    table_sha256: str
    steps: int
    level: float
    growth: float
    level_var: float
    growth_var: float
    covariance: float
    is_other: bool = False


def grown(parts: ForwardParts, growth: float, high: float = SHARES[1]) -> Floats:
    """Growth beyond equal experts in microseconds, inside its bounds: [T + 1]."""
    low = SHARES[0]
    corrected = parts.growth + growth * parts.uniform
    bounded: Floats = np.clip(corrected, low * parts.uniform, high * parts.uniform)
    return bounded


class Learner:
    """Learns a and b from verifications of one server; starts at the table.

    Attributes:
        level: a, share of C(n, k) that the server takes beyond the table's.
        growth: b, growths of uniform routing beyond the table's.
        union_share: the text's growth over that of uniform routing, at the last width.
        version: counts changes after which costs are read anew; 0 is the table.
        steps: verifications that were learnt from.
        is_other: whether the table is of another machine.
        is_lost: whether no two numbers describe it; whole trees are verified.
        forced: share of the largest width that the coming step verifies, if any.
    """

    def __init__(self) -> None:
        self.level = self.growth = 0.0
        self.union_share = math.nan
        self.version = self.steps = 0
        self._low, self._high = (bound - 1.0 for bound in BOUNDS)
        (level_sd, growth_sd), self._covariance = PRIOR_SD, 0.0
        self._level_var, self._growth_var = level_sd**2, growth_sd**2
        self._most_growth = SHARES[1]
        self._used = 0.0, 0.0
        self.is_other = self.is_lost = False
        self.forced: float | None = None
        self._coming: Iterator[float] = iter(())
        self._outside, self._error = 0, 0.0

    def corrected(self, parts: ForwardParts) -> Floats:
        """Microseconds of a forward by tokens, float64 [T + 1]."""
        growth_us = grown(parts, self.growth, self._most_growth)
        corrected: Floats = (1.0 + self.level) * parts.equal + growth_us
        return corrected

    def observe(self, parts: tuple[float, float, float], verify_us: float) -> None:
        """Learn from the time of a verification whose parts are known."""
        equal, growth, uniform = parts
        slope, low, most_growth = uniform / equal, self._low, self._most_growth
        level_var = self._level_var + LEVEL_WALK_VAR
        growth_var = self._growth_var + GROWTH_WALK_VAR
        both = self._covariance
        to_level, to_growth = level_var + slope * both, both + slope * growth_var
        # The noise of the expected time: by the observed one, short times would weigh
        # more than long ones.
        expected = 1.0 + self.level + growth / equal + slope * self.growth
        noise = NOISE * (expected if expected > 1.0 + low else 1.0 + low)
        variance = to_level + slope * to_growth + noise * noise
        off, most = verify_us / equal - expected, MOST_SD * math.sqrt(variance)
        gain = _inside(off, -most, most) / variance
        level = _inside(self.level + to_level * gain, low, self._high)
        own = _inside(self.growth + to_growth * gain, -most_growth, most_growth)
        self.level, self.growth = level, own
        self._level_var = level_var - to_level * to_level / variance
        self._covariance = both - to_level * to_growth / variance
        self._growth_var = growth_var - to_growth * to_growth / variance
        self.steps += 1
        if uniform > 0.0:
            self.union_share = _inside(growth / uniform + own, SHARES[0], most_growth)
        used_level, used = self._used
        change = level - used_level + slope * (own - used)
        if change > LEAST_CHANGE or change < -LEAST_CHANGE:
            self._used = level, own
            self.version += 1
        if self.is_other:
            self._force_next(NOISE / noise * abs(off))
        else:
            self._watch()

    def _watch(self) -> None:
        (low, high), is_text = LEVELS, not self.union_share > MOST_SHARE
        is_like = low < 1.0 + self.level < high and is_text
        self._outside = 0 if is_like else self._outside + 1
        if self._outside == OUTSIDE_STEPS:
            self._open()
            self._coming = iter(FORCED)

    def _open(self) -> None:
        """Learn what a machine can have that is not like the table's."""
        self.is_other = True
        self._low, self._high = (bound - 1.0 for bound in OPEN_LEVELS)
        self._most_growth = OPEN_GROWTH
        self._level_var, self._growth_var = (sd**2 for sd in OPEN_SD)
        self._covariance = 0.0

    def _force_next(self, error: float) -> None:
        """Go on to the next forced width; after the last, judge errors of the costs."""
        self._error += (1.0 - ERROR_MEMORY) * (error - self._error)
        self.forced = next(self._coming, None)
        if self.forced is None and (self.is_lost or self._error > MOST_ERROR):
            self.is_lost, self.forced = True, 1.0

    def learnt(self, table_sha256: str) -> Learnt:
        return Learnt(
            table_sha256,
            self.steps,
            self.level,
            self.growth,
            self._level_var,
            self._growth_var,
            self._covariance,
            self.is_other,
        )

    def restore(self, learnt: Learnt) -> None:
        """Go on from what was learnt before, inside this table's bounds."""
        if learnt.is_other:
            self._open()
        self.steps, most_growth = learnt.steps, self._most_growth
        self.level = _inside(learnt.level, self._low, self._high)
        self.growth = _inside(learnt.growth, -most_growth, most_growth)
        self._level_var, self._growth_var = learnt.level_var, learnt.growth_var
        self._covariance = learnt.covariance
        self._used, self.version = (self.level, self.growth), 1


def _inside(value: float, low: float, high: float) -> float:
    # `min` and `max` take three times as long, of 2 us in all.
    return low if value < low else high if value > high else value
