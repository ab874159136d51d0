"""How fast the machine was, and when: one robust fit of a sweep's samples.

    log latency = cell + block of time        (Huber's M-estimator, 1964)

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
from scipy import sparse

from evict_profile.cells import CELL_FIELDS, measured, with_latency
from evict_profile.stats import Bools, Floats, Ints, student

IN_A_ROW = 8
"""Samples of a block: a tenth of a second to a minute."""
ANOTHER_SPEED, SURE = 0.1, 5.0
"""A change of log latency that is another speed, and how sure it has to be, in standard
errors: of a sweep's hundreds of blocks none is left out by chance."""
FEWEST = 3
"""Samples a cell, on average, below which none says anything of its neighbours."""

MOST_COMPARED = 40
"""Sessions, of which each pair is compared."""

STRETCHES = 5
"""Of a run in one session."""
THROUGHOUT, SPARE = 0.8, 5
"""A stretch with such a share of slow blocks changed, and is judged; but for one whole
session where there are as many: its reference or its clock may have changed alone."""
CERTAIN, KNOWN = 2.5, 0.04
"""In standard errors; and the standard error at which 10 % between sessions are."""

SESSIONS_SD, SESSIONS_FREEDOM = 0.007, 2.0
"""How much sessions are taken to differ, and how many have as much weight as that: by
Student's t, one alone lies within 3 % of their mean. Three sweeps of one machine, in
microseconds, differed by 0.9, 2.4 and 2.7 %."""

HUBER, STEPS, SETTLED, RIDGE = 1.345, 30, 1e-6, 1e-9
MAD_TO_SIGMA, LEAST_INSIDE, LEAST_SPREAD = 1.4826, 0.3, 1e-9


class TwoWay(NamedTuple):
    """Levels of cells [cells], what blocks add to them [blocks], and its covariance.

    The first block adds nothing.
    """

    level: Floats
    effect: Floats
    covariance: Floats


def two_way(samples: pd.DataFrame, block: Ints) -> TwoWay:
    """Fit samples, with their `latency_us`, by cell, in order, and block [samples]."""
    log_us = np.log(samples["latency_us"].to_numpy())
    cell = np.asarray(samples.groupby(list(CELL_FIELDS)).ngroup(), dtype=np.int64)
    fitted = cell.max() + block.max() + 1
    weights, effect = np.ones(len(cell)), np.zeros(block.max() + 1)
    for _ in range(STEPS):
        before, normal = effect, _Normal(cell, block, weights)
        level, effect = normal.solve(log_us)
        rest = log_us - level[cell] - effect[block]
        reach = HUBER * _spread(rest, fitted)
        if np.abs(effect - before).max() < SETTLED:
            break
        weights = np.minimum(1.0, reach / np.maximum(np.abs(rest), LEAST_SPREAD))
    inside = np.clip(rest, -reach, reach)
    steep = max(float((inside == rest).mean()), LEAST_INSIDE)
    variance = float(inside @ inside) / max(len(cell) - fitted, 1) / steep**2
    covariance = variance * _Normal(cell, block, np.ones(len(cell))).inverse()
    return TwoWay(level, effect, covariance)


class _Normal:
    """Normal equations of weighted least squares, of samples by cell and block.

    Blocks are eliminated (Woodbury), since a long run has more of them than cells.
    """

    def __init__(self, cell: Ints, block: Ints, weights: Floats) -> None:
        self._cell, self._block, self._weights = cell, block, weights
        count = self._count = sparse.csr_array((weights, (cell, block)))
        self._of_cell: Floats = count.sum(axis=1)
        self._of_block: Floats = count.sum(axis=0)[1:] + RIDGE
        self._share = count[:, 1:] / self._of_block
        through_blocks = (self._share @ count[:, 1:].T).toarray()
        self._cells = np.asarray(np.diag(self._of_cell) - through_blocks, np.float64)

    def solve(self, values: Floats) -> tuple[Floats, Floats]:
        """Levels of the cells, and what blocks add to them: 0 of the first."""
        total = np.bincount(self._cell, self._weights * values)
        pull = np.bincount(self._block, self._weights * values)
        pull = (pull - self._count.T @ (total / self._of_cell))[1:]
        cells = np.linalg.solve(self._cells, np.asarray(self._share @ pull))
        effect = np.append(0.0, pull / self._of_block + self._share.T @ cells)
        return (total - self._count @ effect) / self._of_cell, effect

    def inverse(self) -> Floats:
        """What effects covary by for a noise of 1, float64 [blocks, blocks]."""
        by_cells = np.linalg.solve(self._cells, self._share.toarray())
        inverse = np.diag(1.0 / self._of_block) + self._share.T @ by_cells
        return np.pad(inverse, ((1, 0), (1, 0)))


def _spread(rest: Floats, fitted: int) -> float:
    """Standard deviation of noise, by the larger residuals: a fit may run through as
    many samples as it has parameters, and their zeros say nothing of noise."""
    larger = np.sort(np.abs(rest))[min(fitted, len(rest) - 1) :]
    return max(MAD_TO_SIGMA * float(np.median(larger)), LEAST_SPREAD)


@dataclass(frozen=True)
class Samples:
    """The samples of a sweep, a row each, and how fast the machine was."""

    frame: pd.DataFrame

    @cached_property
    def timed(self) -> pd.DataFrame:
        """Those that were timed, with their `latency_us`."""
        return with_latency(self.frame)

    @cached_property
    def in_time(self) -> pd.DataFrame:
        """The same in the order measured, also where shards were merged."""
        return self.timed.sort_values("at_unix", kind="stable")

    @cached_property
    def slow(self) -> pd.Series:
        """Whether each, in that order, lies in a block of another speed."""
        return slow_blocks(self.in_time)

    @property
    def dropped_share(self) -> float:
        """Share of those timed that lie in such a block, which no fit is made of."""
        return float(self.slow.mean())

    @cached_property
    def cells(self) -> pd.DataFrame:
        """What the others say of their cells, see `measured`.

        What a router chose does not depend on the speed: unions are of all samples.
        """
        cells = measured(self.timed.drop(index=self.slow.index[self.slow]))
        union = self.timed.groupby(list(CELL_FIELDS))["observed_union"].mean()
        own = union.loc[list(map(astuple, cells.index))]
        return cells.assign(observed_union=own.to_numpy())

    @cached_property
    def drift(self) -> "Drift":
        """How the machine changed, by the samples fitted and by long slow times."""
        return _drift_of(self.in_time, _judged(self.in_time, self.slow))


def slow_blocks(timed: pd.DataFrame) -> pd.Series:
    """Whether each sample lies in such a block."""
    cells = len(timed.groupby(list(CELL_FIELDS)))
    if len(timed) < FEWEST * cells:
        return pd.Series(data=False, index=timed.index)
    in_a_row = timed.groupby("session").cumcount() // IN_A_ROW
    block = np.asarray(timed.groupby(["session", in_a_row]).ngroup(), dtype=np.int64)
    _, effect, covariance = two_way(timed, block)
    error = np.sqrt(np.diag(covariance).clip(min=0.0))
    # An effect that a block has: between two speeds of equal weight lies none.
    apart = np.abs(effect - np.percentile(effect[block], 50, method="lower"))
    slow = (apart > np.maximum(ANOTHER_SPEED, SURE * error))[block]
    return pd.Series(slow, index=timed.index)


class Change(Struct, frozen=True):
    """A relative change of all latencies from one time of a run to another."""

    size: float
    error: float
    between: str

    @property
    def certain(self) -> bool:
        """Whether it is more than noise."""
        return abs(self.size) > CERTAIN * self.error

    def __str__(self) -> str:
        size = f"{self.size:+.1%} +- {2.0 * self.error:.1%}"
        if self.certain:
            return f"{size} {self.between}"
        return f"no change shown {self.between} ({size})"


class Drift(NamedTuple):
    """How the machine changed under a sweep.

    Attributes:
        trend: of a straight line, from the beginning of the run to its end. What
            sessions scatter about it by, of three and more, is in its error.
        stretches: the largest change between two stretches of one session.
        sessions: the largest that two cells were compared across.
        half_width: relative, of 95 %, that sessions leave to every cost.
    """

    trend: Change
    stretches: Change | None = None
    sessions: Change | None = None
    half_width: float = 0.0


def _drift_of(whole: pd.DataFrame, judged: Bools) -> Drift:
    timed = whole[judged]
    stretch = np.unique(stretches_of(whole)[judged], return_inverse=True)[1]
    _, effect, covariance = two_way(timed, stretch)
    count, total = np.bincount(stretch), len(timed)
    at = np.bincount(stretch, np.arange(total)) / count / total
    session = timed["session"].groupby(stretch).first().to_numpy()
    names = np.asarray(pd.unique(session))
    shares = count * (session == names[:, None])
    shares = shares / shares.sum(axis=1, keepdims=True)

    def change(weights: Floats, between: str, scatter: float = 0.0) -> Change:
        """The change that is a weighted sum of the stretches' effects."""
        variance = max(float(weights @ covariance @ weights), 0.0) + scatter**2
        size = float(np.expm1(weights @ effect))
        return Change(size, float(np.sqrt(variance)), between)

    alone, apart = np.eye(len(at)), shares @ effect
    rising = count * (at - count @ at / total)
    rising /= max(float(rising @ at), SETTLED)
    of_sessions = float(np.linalg.norm(rising @ (shares > 0.0).T))
    return Drift(
        change(rising, "over the run", of_sessions * _scatter(shares @ at, apart)),
        _largest(
            change(alone[b] - alone[a], f"from {at[a]:.0%} to {at[b]:.0%} of it")
            for a, b in combinations(range(len(at)), 2)
            if session[a] == session[b]
        ),
        _largest(
            change(across @ shares, f"from session {names[a]} to {names[b]}")
            for a, b, across in _comparisons(timed, names)
        ),
        half_width_of(apart, shares @ covariance @ shares.T),
    )


def _judged(timed: pd.DataFrame, slow_samples: pd.Series) -> Bools:
    """Which samples drift is judged by: all but those of short slow times."""
    slow, stretch = slow_samples.to_numpy(), stretches_of(timed)
    throughout = np.bincount(stretch, slow) > THROUGHOUT * np.bincount(stretch)
    changed = throughout[stretch]
    sessions = timed["session"]
    several = sessions[changed].nunique() > 1 or sessions.nunique() < SPARE
    whole = changed[sessions.isin(sessions[changed])].all()
    judged: Bools = np.where(changed, several or not whole, ~slow)
    return judged


def _scatter(at: Floats, level: Floats) -> float:
    """By how much sessions scatter about a line in time; 0 of one or two."""
    if len(at) < 3:
        return 0.0
    line = np.stack([np.ones(len(at)), at], axis=1)
    rest = level - line @ np.linalg.lstsq(line, level)[0]
    return float(np.sqrt(rest @ rest / (len(at) - 2)))


def sessions_variance(*runs: tuple[Floats, Floats]) -> tuple[float, float]:
    """Square of how much sessions differ, of log latency; and its degrees of freedom.

    Args:
        runs: levels of the sessions of one machine, and the covariance of their noise.
    """
    seen, freedom = 0.0, SESSIONS_FREEDOM
    for level, noise in runs:
        by_noise = np.trace(noise) - noise.mean() * len(level)
        seen += float(((level - level.mean()) ** 2).sum() - by_noise)
        freedom += len(level) - 1
    return (SESSIONS_FREEDOM * SESSIONS_SD**2 + max(seen, 0.0)) / freedom, freedom


def half_width_of(level: Floats, noise: Floats) -> float:
    """Relative half-width, of 95 %, that sessions of these levels leave to every cost.

    By Student's t. `noise` is the covariance of the levels.
    """
    variance, freedom = sessions_variance((level, noise))
    return student(freedom) * float(np.sqrt(variance / len(level)))


def _comparisons(
    timed: pd.DataFrame, names: np.ndarray
) -> Iterable[tuple[int, int, Floats]]:
    """Two sessions, and the weights of all by which some cell of one is compared with
    one of the other; none where each cell was measured in both alike. Of many sessions
    those with the most samples are compared."""
    cell = timed.groupby(list(CELL_FIELDS)).ngroup()
    of_cell = pd.crosstab(cell, timed["session"], normalize="index")[names].to_numpy()
    counts = timed["session"].value_counts()[names].to_numpy()
    largest = sorted(np.argsort(-counts, kind="stable")[:MOST_COMPARED])
    for a, b in combinations(largest, 2):
        of_b = of_cell[:, b] - of_cell[:, a]
        across = of_cell[of_b.argmax()] - of_cell[of_b.argmin()]
        if np.any(across):
            yield a, b, across


def _largest(changes: Iterable[Change]) -> Change | None:
    ranked = sorted(changes, key=lambda c: (c.error > KNOWN, c.certain, abs(c.size)))
    return ranked[-1] if ranked else None


def stretches_of(timed: pd.DataFrame) -> Ints:
    """The stretch of each sample, int64 [samples], from 0 in the order of time."""
    by_session = timed.groupby("session", sort=False)["session"]
    size = by_session.transform("size")
    pieces = (STRETCHES * size / len(timed)).round().clip(lower=1)
    piece = by_session.cumcount() * pieces // size
    stretch = timed.groupby(["session", piece], sort=False).ngroup()
    return np.asarray(stretch, dtype=np.int64)
