"""Has a machine changed since its table was measured? A t-test on sessions and cells.

Let r be the log of a cell's latency now over then, what sets sessions apart taken out.
The median of r over the cells is the change of all; its slope over the share of a
cell's cost that follows U is the relative change of the cost of an expert (Theil's
estimator). Sessions of a runner differ as a whole: that cancels in the slope, and in
the mean it is an error by Student's t (`sessions_variance`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from evict_profile.cells import Cell, cells_of
from evict_profile.stats import Floats, student
from evict_profile.sweep.latency import sessions_variance, slow_blocks
from evict_profile.sweep.two_way import MAD_TO_SIGMA, two_way

Agreement = Literal["same", "drifted", "unclear"]

FALSE_ALARMS, FALSE_SLOPES = 0.014, 0.006
"""Of an unchanged machine, by the mean and by the slope: together 2 in 100."""
SAME_WITHIN = 0.05
"""A machine is "same" where its cells are shown to have moved by no more than this."""
MIN_ERROR = 0.003
"""No cell is known better, as in a fit."""
MIN_SHARE_RANGE = 0.05
"""Where the shares of U differ by less, no cell shows the slope."""
MEDIAN_ERROR, THEIL_ERROR = 1.2533, 1.05
"""Standard errors over those of the mean and of least squares, for normal noise."""


class Levels(NamedTuple):
    """Log latencies of cells [cells], NaN without one, and of sessions about them, with
    the covariance of their noise."""

    of_cell: Floats
    of_session: Floats
    noise: Floats


class Effect(NamedTuple):
    """A change of a log latency, its standard error, and what is beyond chance.

    Attributes:
        limit: standard errors that an unchanged machine rarely exceeds.
    """

    value: float
    error: float
    limit: float

    def __str__(self) -> str:
        if not np.isfinite(self.error):
            return "not shown by these cells"
        return (
            f"{self.relative:+.1%} +- {self.error:.1%} (standard error); a change of "
            f"{self.detectable:.1%} is found in 95 of 100 rechecks"
        )

    @property
    def relative(self) -> float:
        """Now over then, less one."""
        return float(np.expm1(self.value))

    @property
    def is_shown(self) -> bool:
        return abs(self.value) > self.limit * self.error

    @property
    def detectable(self) -> float:
        """The change that is found in 95 of 100 rechecks."""
        return float(np.expm1((self.limit + 1.645) * self.error))


@dataclass(frozen=True)
class PooledChange:
    """How a machine differs from its table.

    Attributes:
        mean: of all cells.
        slope: of what an expert costs; its error is infinite where no cells show it.
        within: the change of no cell is larger, with 95 % confidence.
    """

    mean: Effect
    slope: Effect
    within: float

    def __str__(self) -> str:
        if self.verdict == "drifted":
            which = "all cells" if self.mean.is_shown else "the cost of an expert"
            shown = self.mean if self.mean.is_shown else self.slope
            return f"drifted, {which} by {shown.relative:+.1%}"
        if self.verdict == "same":
            return f"same within {self.within:.1%}"
        return f"unclear, may differ by {self.within:.1%}"

    @property
    def verdict(self) -> Agreement:
        """Drifted where a change is shown, same where it is shown to be small."""
        if self.mean.is_shown or self.slope.is_shown:
            return "drifted"
        return "same" if self.within <= SAME_WITHIN else "unclear"


def levels_of(timed: pd.DataFrame, chosen: Sequence[Cell]) -> Levels:
    """Levels of the chosen among all cells, by the samples of the usual speed.

    Args:
        timed: samples with their `latency_us` and `session`, in the order measured.
    """
    timed = timed[~slow_blocks(timed)]
    _, session = np.unique(timed["session"], return_inverse=True)
    fitted = two_way(timed, session)
    mean = float(fitted.effect.mean())
    level = dict(zip(sorted(set(cells_of(timed))), fitted.level + mean, strict=True))
    of_cell = np.array([level.get(cell, np.nan) for cell in chosen])
    return Levels(of_cell, fitted.effect - mean, fitted.covariance)


def change_between(before: Levels, now: Levels, union_share: Floats) -> PooledChange:
    """Compare the levels of the same cells.

    Args:
        union_share: of each cell's cost, what follows U, float64 [cells].
    """
    from scipy.stats import theilslopes

    ratio = now.of_cell - before.of_cell
    known = np.isfinite(ratio)
    ratio, where = ratio[known], union_share[known] - union_share[known].mean()
    has_slope = np.ptp(where) >= MIN_SHARE_RANGE
    slope = float(theilslopes(ratio, where).slope) if has_slope else 0.0
    mean = float(np.median(ratio - slope * where))
    rest = ratio - slope * where - mean
    noise = max(MAD_TO_SIGMA * float(np.median(np.abs(rest))), MIN_ERROR)
    variance, freedom = sessions_variance(before[1:], now[1:])
    variance *= 1.0 / len(before.of_session) + 1.0 / len(now.of_session)
    variance += (MEDIAN_ERROR * noise) ** 2 / len(ratio)
    error = float(np.sqrt(variance))
    slope_error = np.inf
    if has_slope:
        slope_error = THEIL_ERROR * noise / float(np.linalg.norm(where))
    ends = np.array([where.min(), where.max()])
    ends_error = np.hypot(error, ends * slope_error if has_slope else 0.0)
    within = np.abs(mean + slope * ends) + student(freedom, 0.95) * ends_error
    of_cells = max(len(ratio) - 2.0, 1.0)
    return PooledChange(
        Effect(mean, error, student(freedom, 1.0 - FALSE_ALARMS / 2.0)),
        Effect(slope, slope_error, student(of_cells, 1.0 - FALSE_SLOPES / 2.0)),
        float(np.expm1(within.max())),
    )
