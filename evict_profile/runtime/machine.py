"""Whether a table is of another machine, and what forced widths teach then.

Two numbers learnt outside their bounds say that the table is of another machine. The
bounds then open: its experts may cost a multiple of the table's. Widths that decisions
avoid show nothing, so a few steps verify forced ones. Their times over the learnt costs
give a residual by size. Where times stay apart from costs nevertheless, whole trees are
verified.

A forced width does not depend on what is drafted, as a fixed one; `lossless` admits no
rule here that would be biased by either.
"""

import math

import numpy as np

from evict_profile.runtime.learning import ForwardParts, Learner, Learnt, Parts
from evict_profile.stats import Floats

OUTSIDE_STEPS = SETTLING_STEPS = 16
"""In a row outside of bounds until these open; from then to the first forced width."""

FORCED = (0.25, 0.5, 1.0) * 2
"""Shares of the largest width, one a step."""

ERROR_MEMORY = 0.5 ** (1.0 / 16.0)
MOST_ERROR = 0.3
"""Of the logarithm of time over cost, mean magnitude."""

Point = tuple[float, float]
"""Logarithms of tokens, and of the time over the cost of two numbers."""


class Machine:
    """Learns the costs of one server from its verifications.

    Attributes:
        residual: points in order of tokens; it is linear between them.
        is_other: whether the table is of another machine.
        is_lost: whether forced widths did not settle its costs.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner, self.residual = learner, tuple[Point, ...]()
        self.is_other = self.is_lost = False
        self._steps, self._error, self._chosen = 0, 0.0, 0.0
        self._points: list[Point] = []

    @property
    def forced(self) -> float | None:
        """Share of the largest width that the coming step verifies; None decides."""
        step = self._steps - SETTLING_STEPS
        if self.is_lost:
            return 1.0
        return FORCED[step] if self.is_other and 0 <= step < len(FORCED) else None

    def corrected(self, parts: ForwardParts) -> Floats:
        """Microseconds of a forward by tokens, float64 [T + 1]."""
        us = self.learner.corrected(parts)
        if not self.residual:
            return us
        at = np.log(np.maximum(np.arange(len(us)), 1))
        scaled: Floats = us * np.exp(np.interp(at, *zip(*self.residual, strict=True)))
        return scaled

    def observe(self, tokens: int, parts: Parts, verify_us: float) -> None:
        """Learn from the time of a verification of so many tokens."""
        if self.is_other:
            self._observe_other(math.log(tokens), parts, verify_us)
            return
        self.learner.observe(parts, verify_us)
        self._steps = self._steps + 1 if self.learner.is_outside(parts) else 0
        if self._steps == OUTSIDE_STEPS:
            self._open()

    def _open(self) -> None:
        self.is_other, self._steps = True, 0
        self.learner.open_bounds()

    def _observe_other(self, at: float, parts: Parts, verify_us: float) -> None:
        forced, self._steps = self.forced, self._steps + 1
        if self.residual:
            points = zip(*self.residual, strict=True)
            verify_us /= math.exp(np.interp(at, *points).item())
        off = math.log(verify_us / self.learner.cost_us(parts))
        if forced is None or self.is_lost:
            self._chosen = at
            self._error += (1.0 - ERROR_MEMORY) * (abs(off) - self._error)
            self.learner.observe(parts, verify_us)
            self.is_lost |= bool(self.residual) and self._error > MOST_ERROR
            return
        self._points.append((at, off))
        if self._steps == SETTLING_STEPS + len(FORCED):
            self._settle()

    def _settle(self) -> None:
        """The residual: 0 at the width that was chosen, elsewhere what was forced."""
        found: dict[float, list[float]] = {self._chosen: [0.0]}
        for at, off in self._points:
            found.setdefault(at, []).append(off)
        self.residual = tuple((at, sum(x) / len(x)) for at, x in sorted(found.items()))
        self._error = 0.0
        self.learner.version += 1

    def learnt(self, table_sha256: str) -> Learnt:
        return self.learner.learnt(table_sha256, self.is_other, self.residual)

    def restore(self, learnt: Learnt) -> None:
        """Go on from what was learnt before, inside this table's bounds."""
        if learnt.is_other:
            self._open()
            self._steps = SETTLING_STEPS + len(FORCED) if learnt.residual else 0
        self.residual = learnt.residual
        self.learner.restore(learnt)
