"""Did the machine hold still while it was measured?

    log latency = cell + stretch of time,    fitted to all samples at once

Cells are compared with themselves alone, so what differs between stretches is the
machine. A session, one opening of the runner, has stretches of its own: what compares
shards are the cells that all of them measure.

Fitted is the lower quartile (quantile regression, Koenker & Bassett, 1978). A machine
that halves its speed in short blocks hardly moves it; one that is slower throughout a
stretch moves it by as much.
"""

from collections.abc import Iterable
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
from msgspec import Struct

from evict_profile.cells import Cell, cells_of, with_latency
from evict_profile.stats import Floats, Ints
from evict_profile.sweep.change import Levels
from evict_profile.sweep.speed import Timed

STRETCHES = 5
"""Of a run in one session: a slow third covers nearly all of one, wherever it lies."""

QUANTILE, QUANTILES_NEAR = 0.25, (0.15, 0.35)
STEPS, SMALLEST_STEP = 60, 1e-6
CERTAIN = 2.5
"""In standard errors."""

UNKNOWN = 1.0
"""Standard error of what no cell compares; a ridge keeps it finite."""
RIDGE = 1e-9


NEIGHBOURS, HARDLY = 20, 0.25
"""Samples in a row that were measured beside each other; a share of a level's."""


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
        sessions: the largest that two cells were compared across: all of it where each
            was measured in a session of its own, none where both were in all.
        reach: relative half-width that sessions, apart as a whole, leave to prices.
    """

    trend: Change
    stretches: Change | None
    sessions: Change | None
    reach: float = 0.0


class _Speeds(NamedTuple):
    """Log latency in each stretch, less the first's, with its covariance."""

    log_us: Floats
    covariance: Floats

    def change(
        self, weights: Floats, between: str, scatter: Floats | None = None
    ) -> Change:
        """The change that is a weighted sum, float64 [stretches], of the stretches'.

        Args:
            scatter: of the sum, beyond noise, float64 [sessions].
        """
        variance = weights @ self.covariance @ weights
        if scatter is not None:
            variance += scatter @ scatter
        error = float(np.sqrt(variance))
        return Change(float(np.expm1(weights @ self.log_us)), error, between)


def drift_of(frame: pd.DataFrame) -> Drift:
    """How the machine changed, by the latencies that are fitted."""
    timed = in_time(frame)
    stretch = stretches_of(timed)
    samples = Timed.of(timed, stretch)
    speeds = _speeds(samples)
    counts, total = np.bincount(stretch), len(timed)
    at = np.bincount(stretch, np.arange(total)) / counts / total
    rising = counts * (at - counts @ at / total)
    rising /= max(float(rising @ at), SMALLEST_STEP)
    session = timed.groupby(stretch)["session"].first().to_numpy()
    names = pd.unique(session)
    shares = counts * (session == names[:, None])
    shares = shares / shares.sum(axis=1, keepdims=True)
    together = pd.crosstab(samples.cell, timed["session"], normalize="index")
    of_cell = together[names].to_numpy()
    level, noise = shares @ speeds.log_us, shares @ speeds.covariance @ shares.T
    scatter = _scatter(shares @ at, level)
    alone = np.eye(len(counts))
    return Drift(
        trend=speeds.change(rising, "over the run", scatter * rising @ (shares > 0).T),
        stretches=_largest(
            speeds.change(alone[b] - alone[a], f"from {at[a]:.0%} to {at[b]:.0%} of it")
            for a, b in combinations(range(len(counts)), 2)
            if session[a] == session[b]
        ),
        sessions=_largest(
            speeds.change(across @ shares, f"from session {names[a]} to {names[b]}")
            for a, b in combinations(range(len(names)), 2)
            if np.any(across := _most_apart(of_cell, a, b))
        ),
        reach=_reach(level, noise),
    )


def _reach(level: Floats, noise: Floats) -> float:
    """What sessions of these levels leave to prices; `noise` is their covariance."""
    count = len(level)
    if count == 1:
        return Levels(level, 1.0, 0.0, 0.0).reach
    by_noise = (np.trace(noise) - noise.mean() * count) / (count - 1)
    variance = float(level.var(ddof=1) - by_noise)
    return Levels(level, 1.0 / count, variance, float(by_noise)).reach


def _most_apart(of_cell: Floats, a: int, b: int) -> Floats:
    """The sessions of the cell that is most of b, less those of the one most of a."""
    of_b = of_cell[:, b] - of_cell[:, a]
    apart: Floats = of_cell[of_b.argmax()] - of_cell[of_b.argmin()]
    return apart


def _scatter(at: Floats, level: Floats) -> float:
    """By how much sessions scatter about a line in time; 0 of one or two."""
    if len(at) < 3:
        return 0.0
    line = np.stack([np.ones(len(at)), at], axis=1)
    rest = level - line @ np.linalg.lstsq(line, level)[0]
    return float(np.sqrt(rest @ rest / (len(at) - 2)))


def levels_apart(frame: pd.DataFrame, anchor: Cell) -> list[str]:
    """Batches and contexts that were hardly measured beside another, the anchor apart.

    Whatever the machine did meanwhile looks like what they cost.
    """
    timed = in_time(frame).sort_values("session", kind="stable")
    layers = timed[[c != anchor and c.part == "layers" for c in cells_of(timed)]]
    neighbours = np.arange(len(layers)) // NEIGHBOURS
    apart: list[str] = []
    for axis in ("batch", "context"):
        beside = layers.groupby(neighbours)[axis].transform("nunique") > 1
        share = beside.groupby(layers[axis]).mean()
        if len(share) > 1:
            apart += [f"{axis} {level}" for level in share.index[share < HARDLY]]
    return apart


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


def _largest(changes: Iterable[Change]) -> Change | None:
    ranked = sorted(changes, key=lambda c: (not c.known, c.certain, abs(c.size)))
    return ranked[-1] if ranked else None


def _speeds(samples: Timed) -> _Speeds:
    """Fit cells and stretches by reweighted least squares."""
    cell, stretch, log_us = samples
    shape = (cell.max() + 1, stretch.max() + 1)

    def totals(values: Floats) -> Floats:
        """Sums over the samples of each cell in each stretch."""
        place = np.ravel_multi_index((cell, stretch), shape)
        return np.bincount(place, values, np.prod(shape)).reshape(shape)

    ones = np.ones(len(cell))
    apart = log_us - pd.Series(log_us).groupby(cell).transform("median").to_numpy()
    linear = max(float(np.median(np.abs(apart))) / 3.0, SMALLEST_STEP)
    weights, speed = ones, np.zeros(shape[1])
    for _ in range(STEPS):
        before, count, total = speed, totals(weights), totals(weights * log_us)
        of_cell = count.sum(axis=1)
        pull = total.sum(axis=0) - count.T @ (total.sum(axis=1) / of_cell)
        speed = _inverse(count) @ pull
        level = (total.sum(axis=1) - count @ speed) / of_cell
        residual = log_us - level[cell] - speed[stretch]
        if np.abs(speed - before).max() < SMALLEST_STEP:
            break
        asked = np.where(residual > 0.0, QUANTILE, 1.0 - QUANTILE)
        weights = asked / np.maximum(np.abs(residual) / linear, 1.0)
    # About the fitted quantile itself, cells of few samples have residuals of zero.
    calm = pd.Series(log_us - speed[stretch])
    noise = (calm - calm.groupby(cell).transform("median")).to_numpy()
    return _Speeds(speed, _variance(noise) * _inverse(totals(ones)))


def _inverse(count: Floats) -> Floats:
    """Inverse of the normal equations of the stretches, the first one at 0.

    Args:
        count: samples, or their weights, of each cell in each stretch.
    """
    of_cell = count.sum(axis=1, keepdims=True)
    normal = np.diag(count.sum(axis=0) + RIDGE) - count.T @ (count / of_cell)
    inverse: Floats = np.zeros_like(normal)
    inverse[1:, 1:] = np.linalg.inv(normal[1:, 1:])
    return inverse


def _variance(noise: Floats) -> float:
    """Of the quantile of one sample: q (1 - q) over the density there, squared."""
    low, high = QUANTILES_NEAR
    density = (high - low) / max(np.ptp(np.quantile(noise, [low, high])), 1e-12)
    return float(QUANTILE * (1.0 - QUANTILE) / density**2)
