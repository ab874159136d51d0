"""What samples share is the machine: one fit of cells and times, read three ways.

    log latency = cell + block of time,    by Huber's M-estimator

Cells come in random order, so what the samples of one block have in common is the
machine, not their cells. Blocks of a few samples show where the machine ran at another
speed for some seconds: those are left out. Fifths of a session show whether it held
still. Sessions, one opening of the runner each, differ as a whole for reasons that no
sample shows, and leave an error to every price.
"""

import math
from collections.abc import Iterable
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
from msgspec import Struct

from evict_profile.cells import CELL_FIELDS, with_latency
from evict_profile.stats import Floats, Ints, student

IN_A_ROW = 8
"""Samples of a block: a tenth of a second to a minute."""
ANOTHER_SPEED, SURE = 0.1, 5.0
"""A change of log latency that is another speed, and how sure it has to be, in standard
errors: of a sweep's hundreds of blocks none is left out by chance."""
FEWEST = 3
"""Samples a cell, on average, below which none says anything of its neighbours."""
STRETCHES = 5
"""Of a run in one session."""
CERTAIN = 2.5
"""In standard errors."""
UNKNOWN = 1.0
"""Standard error of what no cell compares; a ridge keeps it finite."""
ALONE, ALONE_FREEDOM = 0.00236, 1.0
"""How much sessions are taken to differ, and with which weight: by Student's t, one
alone lies within 3 % of their mean. Three sweeps of one machine, in microseconds,
differed by 0.9, 2.4 and 2.7 %."""

HUBER, STEPS, SMALLEST_STEP, RIDGE = 1.345, 30, 1e-6, 1e-9
MAD_TO_SIGMA, LEAST_INSIDE, LEAST_SPREAD = 1.4826, 0.3, 1e-9


class Timed(NamedTuple):
    """Samples: the position of each one's cell, its block, and its log latency."""

    cell: Ints
    block: Ints
    log_us: Floats

    @classmethod
    def of(cls, samples: pd.DataFrame, block: Ints) -> "Timed":
        """Samples with their `latency_us`, and the block of each, int64 [samples]."""
        groups = samples.groupby(list(CELL_FIELDS)).ngroup()
        return cls(
            np.asarray(groups, dtype=np.int64),
            block,
            np.log(samples["latency_us"].to_numpy()),
        )


class TwoWay(NamedTuple):
    """Levels of cells [cells], what blocks add to them [blocks], and its covariance.

    The first block adds nothing.
    """

    level: Floats
    effect: Floats
    covariance: Floats


def two_way(timed: Timed) -> TwoWay:
    """Fit cells and blocks by reweighted least squares (Huber, 1981)."""
    cell, block, log_us = timed
    shape = (cell.max() + 1, block.max() + 1)
    place = np.ravel_multi_index((cell, block), shape)

    def totals(values: Floats) -> Floats:
        return np.bincount(place, values, np.prod(shape)).reshape(shape)

    ones = weights = np.ones(len(cell))
    effect = np.zeros(shape[1])
    for _ in range(STEPS):
        before, count, total = effect, totals(weights), totals(weights * log_us)
        of_cell = count.sum(axis=1)
        effect = _inverse(count) @ (total.sum(0) - count.T @ (total.sum(1) / of_cell))
        level = (total.sum(axis=1) - count @ effect) / of_cell
        rest = log_us - level[cell] - effect[block]
        spread = _spread(rest, sum(shape) - 1)
        if np.abs(effect - before).max() < SMALLEST_STEP:
            break
        weights = np.minimum(1.0, HUBER * spread / np.maximum(np.abs(rest), 1e-12))
    inside = np.clip(rest, -HUBER * spread, HUBER * spread)
    steep = max(float((inside == rest).mean()), LEAST_INSIDE)
    freedom = max(len(cell) - sum(shape) + 1, 1)
    variance = float(inside @ inside) / freedom / steep**2
    return TwoWay(level, effect, variance * _inverse(totals(ones)))


def _inverse(count: Floats) -> Floats:
    """Inverse of the normal equations of the blocks, the first one at 0.

    Args:
        count: samples, or their weights, of each cell in each block.
    """
    of_cell = count.sum(axis=1, keepdims=True)
    normal = np.diag(count.sum(axis=0) + RIDGE) - count.T @ (count / of_cell)
    inverse: Floats = np.zeros_like(normal)
    inverse[1:, 1:] = np.linalg.inv(normal[1:, 1:])
    return inverse


def _spread(rest: Floats, fitted: int) -> float:
    """Standard deviation of noise, by the larger residuals: a fit may run through as
    many samples as it has parameters, and their zeros say nothing of noise."""
    larger = np.sort(np.abs(rest))[min(fitted, len(rest) - 1) :]
    return max(MAD_TO_SIGMA * float(np.median(larger)), LEAST_SPREAD)


def without_slow_blocks(frame: pd.DataFrame) -> pd.DataFrame:
    """The samples of a sweep without blocks in which the machine had another speed."""
    samples = with_latency(frame).sort_values(["session", "at_unix"], kind="stable")
    timed = Timed.of(samples, np.arange(len(samples)) // IN_A_ROW)
    if len(samples) < FEWEST * (timed.cell.max(initial=0) + 1):
        return frame
    fitted = two_way(timed)
    usual = np.median(fitted.effect[timed.block])
    error = np.sqrt(np.maximum(np.diag(fitted.covariance), 0.0))
    slow = np.abs(fitted.effect - usual) > np.maximum(ANOTHER_SPEED, SURE * error)
    return frame.drop(index=samples.index[slow[timed.block]])


class Change(Struct, frozen=True):
    """A relative change of all latencies from one time of a run to another."""

    size: float
    error: float
    between: str

    @property
    def certain(self) -> bool:
        """Whether it is more than noise."""
        return abs(self.size) > CERTAIN * self.error

    @property
    def known(self) -> bool:
        """Whether any cell was measured at both times."""
        return self.error < UNKNOWN

    def __str__(self) -> str:
        if not self.known:
            return f"unknown {self.between}, for want of a cell measured both times"
        size = f"{self.size:+.1%} +- {2.0 * self.error:.1%}"
        if not self.certain:
            return f"no change shown {self.between} ({size})"
        return f"{size} {self.between}"


class Drift(NamedTuple):
    """How the machine changed under a sweep.

    Attributes:
        trend: of a straight line, from the beginning of the run to its end. What
            sessions scatter about it by, of three and more, is in its error.
        stretches: the largest change between two stretches of one session.
        sessions: the largest that two cells were compared across.
        half_width: relative, of 95 %, that sessions leave to every price.
    """

    trend: Change
    stretches: Change | None
    sessions: Change | None
    half_width: float = 0.0


class _Stretches(NamedTuple):
    """A run cut into stretches: the fit, and where each lies.

    Attributes:
        size: its samples.
        at: its place in the run, from 0 to 1.
        session: its session.
        names: of the sessions.
        shares: of each session's samples, float64 [sessions, stretches].
    """

    fit: TwoWay
    size: Ints
    at: Floats
    session: np.ndarray
    names: np.ndarray
    shares: Floats

    def change(self, weights: Floats, between: str, scatter: float = 0.0) -> Change:
        """The change that is a weighted sum of the stretches' effects."""
        variance = float(weights @ self.fit.covariance @ weights) + scatter
        size = math.expm1(float(weights @ self.fit.effect))
        return Change(size, math.sqrt(max(variance, 0.0)), between)

    def from_to(self, a: int, b: int) -> Change:
        """The change from one stretch to another."""
        alone = np.eye(len(self.at))
        where = f"from {self.at[a]:.0%} to {self.at[b]:.0%} of it"
        return self.change(alone[b] - alone[a], where)


def drift_of(frame: pd.DataFrame) -> Drift:
    """How the machine changed, by the samples that are fitted."""
    timed = in_time(without_slow_blocks(frame))
    stretch = stretches_of(timed)
    samples = Timed.of(timed, stretch)
    parts = _stretches(timed, stretch, two_way(samples))
    together = pd.crosstab(samples.cell, timed["session"], normalize="index")
    of_cell, names = together[parts.names].to_numpy(), parts.names
    every = range(len(parts.at))
    within = (
        (a, b)
        for a, b in combinations(every, 2)
        if parts.session[a] == parts.session[b]
    )
    between = (
        (a, b, _most_apart(of_cell, a, b))
        for a, b in combinations(range(len(names)), 2)
    )
    return Drift(
        trend=_trend(parts),
        stretches=_largest(parts.from_to(a, b) for a, b in within),
        sessions=_largest(
            parts.change(
                across @ parts.shares, f"from session {names[a]} to {names[b]}"
            )
            for a, b, across in between
            if np.any(across)
        ),
        half_width=_half_width(parts),
    )


def _stretches(timed: pd.DataFrame, stretch: Ints, fit: TwoWay) -> _Stretches:
    count, total = np.bincount(stretch), len(timed)
    at = np.bincount(stretch, np.arange(total)) / count / total
    session = timed.groupby(stretch)["session"].first().to_numpy()
    names = np.asarray(pd.unique(session))
    shares = count * (session == names[:, None])
    return _Stretches(
        fit, count, at, session, names, shares / shares.sum(axis=1, keepdims=True)
    )


def _trend(parts: _Stretches) -> Change:
    weights = parts.size * (parts.at - parts.size @ parts.at / parts.size.sum())
    weights = weights / max(float(weights @ parts.at), SMALLEST_STEP)
    own = np.where(parts.shares > 0.0, weights, 0.0).sum(axis=1)
    scatter = _scatter(parts.shares @ parts.at, parts.shares @ parts.fit.effect)
    return parts.change(weights, "over the run", float(own @ own) * scatter**2)


def _scatter(at: Floats, level: Floats) -> float:
    """By how much sessions scatter about a line in time; 0 of one or two."""
    if len(at) < 3:
        return 0.0
    line = np.stack([np.ones(len(at)), at], axis=1)
    rest = level - line @ np.linalg.lstsq(line, level)[0]
    return float(np.sqrt(rest @ rest / (len(at) - 2)))


def _half_width(parts: _Stretches) -> float:
    """What sessions leave to prices, by Student's t; see `ALONE`."""
    level, noise = (
        parts.shares @ parts.fit.effect,
        parts.shares @ parts.fit.covariance @ parts.shares.T,
    )
    count = len(level)
    freedom = ALONE_FREEDOM + count - 1
    seen = 0.0
    if count > 1:
        by_noise = (np.trace(noise) - noise.mean() * count) / (count - 1)
        seen = (count - 1) * max(float(level.var(ddof=1) - by_noise), 0.0)
    variance = (ALONE_FREEDOM * ALONE**2 + seen) / freedom
    return student(freedom) * float(np.sqrt(variance / count))


def _most_apart(of_cell: Floats, a: int, b: int) -> Floats:
    """The sessions of the cell that is most of b, less those of the one most of a."""
    of_b = of_cell[:, b] - of_cell[:, a]
    apart: Floats = of_cell[of_b.argmax()] - of_cell[of_b.argmin()]
    return apart


def _largest(changes: Iterable[Change]) -> Change | None:
    ranked = sorted(changes, key=lambda c: (not c.known, c.certain, abs(c.size)))
    return ranked[-1] if ranked else None


def in_time(frame: pd.DataFrame) -> pd.DataFrame:
    """The timed samples in the order measured, also where shards were merged."""
    return with_latency(frame).sort_values("at_unix", kind="stable", ignore_index=True)


def stretches_of(timed: pd.DataFrame) -> Ints:
    """The stretch of each sample, int64 [samples], from 0 in the order of time."""
    by_session = timed.groupby("session", sort=False)["session"]
    size = by_session.transform("size")
    pieces = (STRETCHES * size / len(timed)).round().clip(lower=1)
    piece = by_session.cumcount() * pieces // size
    stretch = timed.groupby(["session", piece], sort=False).ngroup()
    return np.asarray(stretch, dtype=np.int64)
