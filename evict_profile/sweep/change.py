"""Has a machine changed since its table was measured? What all cells tell together.

Let r be the log of a cell's latency now over then. Two numbers tell of a change: the
mean of r over the cells, and its slope over the share of a cell's cost that follows U,
which is the relative change of the cost of an expert. Both are fitted by Tukey's
bisquare, so that a disturbed cell does not decide.

Openings of a runner differ as a whole, for reasons that no sample shows: where memory
lies, which clock the device settled on. That moves every cell alike. It cancels in the
slope, and does not in the mean, whose variance is

    Var(mean) = noise of the cells + between^2 (1 / openings then + 1 / openings now)

`between` is 1 % unless the openings at hand say otherwise. With one opening then, no
number of openings now can bring the standard error below 1 %: a change of 3 % is then
found in about half of all rechecks.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from evict_profile.stats import Floats, student
from evict_profile.sweep.speed import MAD_TO_SIGMA, Timed, polish

Agreement = Literal["same", "drifted", "unclear"]

FALSE_ALARMS, FALSE_SLOPES = 0.014, 0.006
"""Of an unchanged machine, by the mean and by the slope: together 2 in 100."""

SAME_WITHIN = 0.05
"""A machine is "same" where its cells are shown to have moved by no more than this."""

BETWEEN, BETWEEN_FREEDOM, REFUTED = 0.01, 20.0, 0.001
"""How much openings are taken to differ, how many have as much weight as that, and how
improbable theirs is when it is given up."""

ALONE, ALONE_FREEDOM = 0.00236, 1.0
"""The same for what openings leave to prices, where few were seen: by Student's t, one
alone lies within 3 % of what they come to in the mean. Three sweeps of one machine, in
microseconds, differed by 0.9, 2.4 and 2.7 %. It weighs as little as it can, so that six
openings that are alike are believed."""

TUKEY, TUKEY_STEPS, SETTLED, LEAST_STEEP = 4.685, 20, 1e-5, 0.2
MIN_ERROR = 0.003
"""No cell is known better, as in a fit."""

MIN_SHARE_RANGE = 0.05
"""Where the shares of U differ by less, nothing tells of the slope."""


class Levels(NamedTuple):
    """Log latencies of cells, and how much the openings behind them differ.

    Attributes:
        of_cell: float64 [cells], what sets openings apart taken out.
        share: sum of squares of the openings' shares of the samples: 1 with one
            opening, 1 / k with k alike.
        variance: between openings, noise taken out; 0 with one.
        noise: variance of what is known of one opening.
    """

    of_cell: Floats
    share: float
    variance: float
    noise: float

    def freedom(self, variance: float) -> float:
        """What the openings tell where they differ so: less where noise hides them."""
        clear = variance / (variance + self.noise)
        return clear**2 * (1.0 / self.share - 1.0)

    @property
    def reach(self) -> float:
        """Relative half-width, of 95 %, that openings apart as a whole leave to prices.

        From those that were seen and what is taken of any; see `ALONE`.
        """
        seen = 1.0 / self.share - 1.0
        freedom = ALONE_FREEDOM + seen
        squares = ALONE_FREEDOM * ALONE**2 + seen * max(self.variance, 0.0)
        error = float(np.sqrt(squares / freedom * self.share))
        return student(freedom) * error


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
            return "not told by these cells"
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
        """Whether it is beyond chance."""
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
        slope: of what an expert costs; its error is infinite where no cells tell.
        within: the change of no cell is larger, with 95 % confidence.
        between: standard deviation between openings, as taken.
    """

    mean: Effect
    slope: Effect
    within: float
    between: float

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


def change_between(before: Levels, now: Levels, union_share: Floats) -> PooledChange:
    """Compare the levels of the same cells.

    Args:
        union_share: of each cell's cost, what follows U, float64 [cells].
    """
    where = union_share - union_share.mean()
    told = np.ptp(union_share) >= MIN_SHARE_RANGE
    design = np.stack([np.ones(len(where)), where], axis=1)[:, : 1 + told]
    fitted, cov = _robust_fit(design, now.of_cell - before.of_cell)
    between, freedom = _between((before, now))
    shared = between**2 * (before.share + now.share)
    of_cells = max(len(where) - design.shape[1], 1)
    whole = _satterthwaite((cov[0, 0], of_cells), (shared, freedom))
    slope, slope_error = (fitted[1], cov[1, 1] ** 0.5) if told else (0.0, np.inf)
    ends = design[[where.argmin(), where.argmax()]]
    error = np.sqrt(np.einsum("ei,ij,ej->e", ends, cov, ends) + shared)
    reach = np.abs(ends @ fitted) + student(whole, 0.95) * error
    return PooledChange(
        mean=Effect(
            float(fitted[0]),
            float(np.sqrt(cov[0, 0] + shared)),
            student(whole, 1.0 - FALSE_ALARMS / 2.0),
        ),
        slope=Effect(
            float(slope),
            float(slope_error),
            student(of_cells, 1.0 - FALSE_SLOPES / 2.0),
        ),
        within=float(np.expm1(reach.max())),
        between=between,
    )


def levels_of(timed: Timed) -> Levels:
    """The level of each cell, with what sets openings apart taken out.

    Args:
        timed: samples whose times are openings.
    """
    count = np.bincount(timed.time)
    share, (level, effect, noise) = count / count.sum(), polish(timed)
    together = float(share @ share)
    if together > 1.0 - 1e-9:
        return Levels(level, 1.0, 0.0, 0.0)
    seen = float(share @ effect**2 - share @ ((1.0 - share) * noise))
    return Levels(level, together, seen / (1.0 - together), float(share @ noise))


def _between(sides: tuple[Levels, Levels]) -> tuple[float, float]:
    """Standard deviation between openings, and its degrees of freedom."""
    from scipy.special import chdtri

    seen, freedom = _seen(sides, BETWEEN**2)
    if freedom and freedom * seen / BETWEEN**2 > chdtri(freedom, REFUTED):
        seen, freedom = _seen(sides, seen)
        return float(np.sqrt(seen)), freedom
    both = freedom + BETWEEN_FREEDOM
    variance = (BETWEEN_FREEDOM * BETWEEN**2 + freedom * seen) / both
    return float(np.sqrt(max(variance, MIN_ERROR**2))), both


def _seen(sides: tuple[Levels, Levels], variance: float) -> tuple[float, float]:
    """Variance between openings that is seen, and its degrees of freedom there."""
    freedom = np.array([side.freedom(variance) for side in sides])
    seen = freedom @ [side.variance for side in sides] / max(freedom.sum(), 1e-12)
    return float(seen), float(freedom.sum())


def _robust_fit(design: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Coefficients by Tukey's bisquare, and their covariance (Huber, 1981, 7.6).

    Args:
        design: [values, coefficients], a column of ones first.
    """
    count, width = design.shape
    fitted = np.zeros(width)
    fitted[0] = np.median(values)
    for _ in range(TUKEY_STEPS):
        rest = values - design @ fitted
        scale = max(MAD_TO_SIGMA * float(np.median(np.abs(rest))), MIN_ERROR)
        inside = np.maximum(1.0 - (rest / (TUKEY * scale)) ** 2, 0.0)
        weighted = design.T * inside**2
        before, fitted = fitted, np.linalg.solve(weighted @ design, weighted @ values)
        if np.abs(fitted - before).max() < SETTLED:
            break
    influence, steep = inside**2 * rest, inside * (5.0 * inside - 4.0)
    mean = max(float(steep.mean()), LEAST_STEEP)
    small = 1.0 + width / count * float(steep.var()) / mean**2
    variance = float(influence @ influence) / max(count - width, 1) / mean**2
    spread = small**2 * variance + MIN_ERROR**2
    return fitted, spread * np.linalg.pinv(design.T @ design)


def _satterthwaite(*parts: tuple[float, float]) -> float:
    """Degrees of freedom of a sum of variances, each with its own."""
    whole = sum(variance for variance, _ in parts)
    return whole**2 / sum(variance**2 / freedom for variance, freedom in parts)
