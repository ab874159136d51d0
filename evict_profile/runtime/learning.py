"""Two numbers of a server, learnt from its verifications and a table.

A verification of n tokens takes, by a table, C(n, k) where all tokens choose the same
experts, and a growth for the experts that they activate beyond these. A server differs
in its level (driver, clocks, build) and in its text, which activates more or fewer:

    observed = (1 + a) C(n, k) + growth(n) + b [C(n, U_uniform(n)) - C(n, k)]

A slope that is free in n would take one for the other. C(n, k) and C(n, U) were
measured with unions forced apart from n, so served steps alone identify a and b. Both
follow a random walk, and each step updates them by Kalman's filter (R. E. Kalman,
1960), in errors relative to C(n, k). Widths that are never chosen add nothing.
"""

import math
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

LEVELS = 0.7, 1.3
GROWTHS = 0.3, 1.2
"""Of a machine like the table's: level over it, growth in growths of uniform routing.
A table's own bounds of the level can be narrower."""

OPEN_LEVELS = 0.1, 10.0
OPEN_GROWTH = 10.0
OPEN_SD = 0.5, 1.0
"""Bounds for a table of another machine, and what is then not known of a and b."""

LEAST_CHANGE = 0.01
"""Costs are read anew where one changed by more."""


Parts = tuple[float, float, float]
"""Of `ForwardParts`, at one number of tokens."""


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

    def at(self, tokens: int) -> Parts:
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
    residual: tuple[tuple[float, float], ...] = ()


def grown(parts: ForwardParts, growth: float, most: float = SHARES[1]) -> Floats:
    """Growth beyond equal experts in microseconds, inside its bounds: [T + 1]."""
    corrected = parts.growth + growth * parts.uniform
    bounded: Floats = np.clip(
        corrected, SHARES[0] * parts.uniform, most * parts.uniform
    )
    return bounded


class Learner:
    """Learns a and b from verifications of one server; starts at the table.

    Attributes:
        level: a, share of C(n, k) that the server takes beyond the table's.
        growth: b, growths of uniform routing beyond the table's.
        union_share: the text's growth over that of uniform routing, at the last width.
        version: counts changes after which costs are read anew; 0 is the table.
        steps: verifications that were learnt from.
    """

    def __init__(self, level_bounds: tuple[float, float]) -> None:
        self.level = self.growth = 0.0
        self.union_share = math.nan
        self.version = self.steps = 0
        self._low, self._high = (bound - 1.0 for bound in level_bounds)
        self._most_growth = SHARES[1]
        (level_sd, growth_sd), self._covariance = PRIOR_SD, 0.0
        self._level_var, self._growth_var = level_sd**2, growth_sd**2
        self._used = 0.0, 0.0

    def corrected(self, parts: ForwardParts) -> Floats:
        """Microseconds of a forward by tokens, float64 [T + 1]."""
        growth_us = grown(parts, self.growth, self._most_growth)
        corrected: Floats = (1.0 + self.level) * parts.equal + growth_us
        return corrected

    def cost_us(self, parts: Parts) -> float:
        """As `corrected`, at one number of tokens."""
        equal, growth, uniform = parts
        grown = growth + self.growth * uniform
        grown = min(max(grown, 0.0), self._most_growth * uniform)
        return (1.0 + self.level) * equal + grown

    def is_outside(self, parts: Parts) -> bool:
        """Whether the last numbers are none of a machine like the table's."""
        _, growth, uniform = parts
        low, high = max(self._low, LEVELS[0] - 1.0), min(self._high, LEVELS[1] - 1.0)
        if not low < self.level < high:
            return True
        share = growth + self.growth * uniform
        return not GROWTHS[0] * uniform <= share <= GROWTHS[1] * uniform

    def open_bounds(self) -> None:
        """Learn what another machine than the table's can have."""
        self._low, self._high = (bound - 1.0 for bound in OPEN_LEVELS)
        self._most_growth = OPEN_GROWTH
        self._level_var, self._growth_var = (sd**2 for sd in OPEN_SD)
        self._covariance = 0.0

    def observe(self, parts: Parts, verify_us: float) -> None:
        """Learn from the time of a verification whose parts are known."""
        equal, growth, uniform = parts
        slope = uniform / equal
        level_var = self._level_var + LEVEL_WALK_VAR
        growth_var = self._growth_var + GROWTH_WALK_VAR
        both = self._covariance
        to_level, to_growth = level_var + slope * both, both + slope * growth_var
        # The noise of the expected time: by the observed one, short times would weigh
        # more than long ones.
        expected = 1.0 + self.level + growth / equal + slope * self.growth
        noise = NOISE * max(expected, 1.0 + self._low)
        variance = to_level + slope * to_growth + noise * noise
        off, most = verify_us / equal - expected, MOST_SD * math.sqrt(variance)
        off = (-most if off < -most else most if off > most else off) / variance
        level = self.level + to_level * off
        low, high, most = self._low, self._high, self._most_growth
        self.level = low if level < low else high if level > high else level
        own = self.growth + to_growth * off
        self.growth = -most if own < -most else most if own > most else own
        self._level_var = level_var - to_level * to_level / variance
        self._covariance = both - to_level * to_growth / variance
        self._growth_var = growth_var - to_growth * to_growth / variance
        self.steps += 1
        if uniform > 0.0:
            share = growth / uniform + self.growth
            self.union_share = 0.0 if share < 0.0 else most if share > most else share
        level, own = self._used
        if abs(self.level - level + slope * (self.growth - own)) > LEAST_CHANGE:
            self._used = self.level, self.growth
            self.version += 1

    def learnt(
        self, table_sha256: str, is_other: bool = False,
        residual: tuple[tuple[float, float], ...] = (),
    ) -> Learnt:  # fmt: skip
        return Learnt(
            table_sha256,
            self.steps,
            self.level,
            self.growth,
            self._level_var,
            self._growth_var,
            self._covariance,
            is_other,
            residual,
        )

    def restore(self, learnt: Learnt) -> None:
        """Go on from what was learnt before, inside this table's bounds."""
        self.steps = learnt.steps
        self.level = min(max(learnt.level, self._low), self._high)
        self.growth = min(max(learnt.growth, -self._most_growth), self._most_growth)
        self._level_var, self._growth_var = learnt.level_var, learnt.growth_var
        self._covariance = learnt.covariance
        self._used, self.version = (self.level, self.growth), 1
