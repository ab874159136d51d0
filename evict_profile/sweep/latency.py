"""How fast the machine was, and when: a robust fit of cells and blocks of time.

Cells come in random order, so what the samples of a block share is the machine. Blocks
of a few samples show times of another speed, which are left out. Fifths of a session
show drift. Sessions differ as a whole, and leave an error to every cost.
"""

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
from msgspec import Struct

from evict_profile.cells import CELL_FIELDS, measured, with_latency
from evict_profile.stats import Bools, Floats, Ints, student
from evict_profile.sweep.two_way import TwoWay, two_way

BLOCK_SAMPLES = 8
"""Samples of a block: a tenth of a second to a minute."""
SLOW_CHANGE, SLOW_Z = 0.1, 5.0
"""A change of log latency that is another speed, and how sure it has to be, in standard
errors: of a sweep's hundreds of blocks none is left out by chance."""
MIN_SAMPLES_PER_CELL = 3
"""Samples a cell, on average, below which none says anything of its neighbours."""

STRETCHES = 5
"""Of a run in one session."""
SLOW_STRETCH_SHARE, MIN_SESSIONS = 0.8, 5
"""A stretch with such a share of slow blocks changed, and is judged; but for one whole
session where there are as many: its reference or its clock may have changed alone."""
STANDARD_ERRORS = 2.0
"""Of half a 95 % interval."""

SESSION_PRIOR_SD, SESSION_PRIOR_DOF = 0.007, 2.0
"""How much sessions are taken to differ, and how many have as much weight as that: by
Student's t, one alone lies within 3 % of their mean. Three sweeps of one machine, in
microseconds, differed by 0.9, 2.4 and 2.7 %."""

LEAST_RISE = 1e-6
"""Of a line in time, so that one stretch alone has a slope of zero."""


@dataclass(frozen=True)
class Samples:
    frame: pd.DataFrame

    @cached_property
    def timed(self) -> pd.DataFrame:
        return with_latency(self.frame)

    @cached_property
    def in_time(self) -> pd.DataFrame:
        return self.timed.sort_values("at_unix", kind="stable")

    @cached_property
    def slow(self) -> pd.Series:
        return slow_blocks(self.in_time)

    @property
    def dropped_share(self) -> float:
        """Share of the timed samples that lie in blocks of another speed."""
        return float(self.slow.mean())

    @cached_property
    def cells(self) -> pd.DataFrame:
        """`measured` cells, without such blocks, and their mean `observed_union`."""
        cells = measured(self.timed.drop(index=self.slow.index[self.slow]))
        union = self.timed.groupby(list(CELL_FIELDS))["observed_union"].mean()
        unions = union.loc[list(map(astuple, cells.index))]
        return cells.assign(observed_union=unions.to_numpy())

    @cached_property
    def drift(self) -> "Drift":
        return _drift_of(self.in_time, _judged(self.in_time, self.slow))


def slow_blocks(timed: pd.DataFrame) -> pd.Series:
    cells = len(timed.groupby(list(CELL_FIELDS)))
    if len(timed) < MIN_SAMPLES_PER_CELL * cells:
        return pd.Series(data=False, index=timed.index)
    in_a_row = timed.groupby("session").cumcount() // BLOCK_SAMPLES
    block = np.asarray(timed.groupby(["session", in_a_row]).ngroup(), dtype=np.int64)
    _, effect, covariance = two_way(timed, block)
    error = np.sqrt(np.diag(covariance).clip(min=0.0))
    # An effect that a block has: between two speeds of equal weight lies none.
    apart = np.abs(effect - np.percentile(effect[block], 50, method="lower"))
    slow = (apart > np.maximum(SLOW_CHANGE, SLOW_Z * error))[block]
    return pd.Series(slow, index=timed.index)


class Change(Struct, frozen=True):
    """A relative change of all latencies from one time of a run to another."""

    size: float
    error: float
    between: str

    @property
    def least(self) -> float:
        """The smallest change in its 95 % interval; 0 where that holds no change."""
        return max(abs(self.size) - STANDARD_ERRORS * self.error, 0.0)

    def __str__(self) -> str:
        size = f"{self.size:+.1%} +- {STANDARD_ERRORS * self.error:.1%}"
        if self.least:
            return f"{size} {self.between}"
        return f"no change shown {self.between} ({size})"


class Drift(NamedTuple):
    """How the machine changed under a sweep.

    `trend` is a change over the run, or a step between two sessions where that is
    surer; `stretches` the largest between two stretches of one session. `half_width` is
    relative, of 95 %, and is left to every cost.
    """

    trend: Change
    stretches: Change | None = None
    half_width: float = 0.0


def _drift_of(whole: pd.DataFrame, judged: Bools) -> Drift:
    timed = whole[judged]
    stretch = np.unique(stretches_of(whole)[judged], return_inverse=True)[1]
    fitted = two_way(timed, stretch)
    count, total = np.bincount(stretch), len(timed)
    middle = np.bincount(stretch, np.arange(total)) / count / total
    session = timed["session"].groupby(stretch).first().to_numpy()
    names = np.asarray(pd.unique(session))
    is_own = session == names[:, None]
    means = count * is_own / (count * is_own).sum(axis=1, keepdims=True)
    level = means @ fitted.effect
    noise = means @ fitted.covariance @ means.T

    def rise(shape: Floats, between: str) -> Change:
        weights = count * (shape - count @ shape / total)
        weights /= max(float(weights @ shape), LEAST_RISE)
        scatter = _scatter(means @ shape, level, noise)
        scatter *= float(np.linalg.norm(is_own @ weights))
        return _contrast(fitted, weights, between, scatter)

    steps = (
        rise(is_own[k:].any(axis=0) * 1.0, f"after session {names[k - 1]}")
        for k in range(2, len(names) - 1)
    )
    one = np.eye(len(middle))
    within = (
        _contrast(
            fitted, one[b] - one[a], f"from {middle[a]:.0%} to {middle[b]:.0%} of it"
        )
        for a, b in combinations(range(len(middle)), 2)
        if session[a] == session[b]
    )
    return Drift(
        max([rise(middle, "over the run"), *steps], key=lambda c: c.least),
        _largest(within),
        half_width_of(level, noise),
    )


def _contrast(
    fitted: TwoWay, weights: Floats, between: str, scatter: float = 0.0
) -> Change:
    variance = max(float(weights @ fitted.covariance @ weights), 0.0) + scatter**2
    size = float(np.expm1(weights @ fitted.effect))
    return Change(size, float(np.sqrt(variance)), between)


def _judged(timed: pd.DataFrame, slow_samples: pd.Series) -> Bools:
    """Which samples drift is judged by: no short slow times.

    A stretch that is slow throughout is a change and is judged, unless it is the one
    session of many that is slow as a whole.
    """
    slow, stretch = slow_samples.to_numpy(), stretches_of(timed)
    share = np.bincount(stretch, slow) / np.bincount(stretch)
    changed: Bools = (share > SLOW_STRETCH_SHARE)[stretch]
    sessions = timed["session"]
    affected = sessions[changed].unique()
    alone = len(affected) == 1 and sessions.nunique() >= MIN_SESSIONS
    if alone and changed[sessions.isin(affected)].all():
        return np.asarray(~slow & ~changed, np.bool_)
    return np.asarray(~slow | changed, np.bool_)


def _scatter(at: Floats, level: Floats, noise: Floats) -> float:
    """By how much sessions scatter about a line, beyond noise; 0 of one or two.

    The fewer sessions, the larger: its 95 % by Student's t are two standard errors.
    """
    if (freedom := len(at) - 2) < 1:
        return 0.0
    line = np.stack([np.ones(len(at)), at], axis=1)
    off_line = np.eye(len(at)) - line @ np.linalg.pinv(line)
    seen = float(level @ off_line @ level) - float(np.trace(off_line @ noise))
    return student(freedom) / STANDARD_ERRORS * float(np.sqrt(max(seen, 0.0) / freedom))


def sessions_variance(*runs: tuple[Floats, Floats]) -> tuple[float, float]:
    """Variance between sessions, of log latency, and its degrees of freedom.

    `runs` are levels of the sessions of one machine, and the covariance of their noise.
    """
    seen, freedom = 0.0, SESSION_PRIOR_DOF
    for level, noise in runs:
        by_noise = np.trace(noise) - noise.mean() * len(level)
        seen += float(((level - level.mean()) ** 2).sum() - by_noise)
        freedom += len(level) - 1
    return (SESSION_PRIOR_DOF * SESSION_PRIOR_SD**2 + max(seen, 0.0)) / freedom, freedom


def half_width_of(level: Floats, noise: Floats) -> float:
    """Relative half-width, 95 % by Student's t, that sessions leave to every cost."""
    variance, freedom = sessions_variance((level, noise))
    return student(freedom) * float(np.sqrt(variance / len(level)))


def _largest(changes: Iterable[Change]) -> Change | None:
    return max(changes, key=lambda c: (c.least, abs(c.size)), default=None)


def stretches_of(timed: pd.DataFrame) -> Ints:
    """The stretch of each sample, int64 [samples], from 0 in the order of time."""
    by_session = timed.groupby("session", sort=False)["session"]
    size = by_session.transform("size")
    pieces = (STRETCHES * size / len(timed)).round().clip(lower=1)
    piece = by_session.cumcount() * pieces // size
    stretch = timed.groupby(["session", piece], sort=False).ngroup()
    return np.asarray(stretch, dtype=np.int64)
