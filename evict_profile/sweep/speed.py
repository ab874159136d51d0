"""When was the machine as fast as usual? What samples in a row tell of each other.

    log latency = cell + time,    by medians in turn (median polish; Tukey, 1977)

A time is a few samples in a row, or an opening of the runner. Cells come in random
order, so what the samples of one time have in common is the machine, not their cells.

A machine that is throttled, or shared, runs at another speed for some seconds. A
reference work beside each sample cancels that; most devices have none. Then a cell
whose samples met two such times has a median that says nothing of what it costs, and a
wide interval for all cells does not make its price right. Samples of such times are
known by their neighbours, and no fit is made of them.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from evict_profile.cells import CELL_FIELDS, with_latency
from evict_profile.stats import Floats, Ints

IN_A_ROW = 8
"""Samples of one time: a tenth of a second to a minute."""

ANOTHER_SPEED, CERTAIN = 0.1, 5.0
"""A change of log latency that is another speed, and how certain it has to be, in
standard errors: of a sweep's hundreds of times none is left out by chance."""

FEWEST = 3
"""Samples a cell, on average, below which none tells of its neighbours."""

STEPS, MAD_TO_SIGMA = 4, 1.4826


class Timed(NamedTuple):
    """Samples: the position of each one's cell, its time, and its log latency."""

    cell: Ints
    time: Ints
    log_us: Floats

    @classmethod
    def of(cls, samples: pd.DataFrame, time: Ints) -> "Timed":
        """Samples with their `latency_us`, and the time of each, int64 [samples]."""
        groups = samples.groupby(list(CELL_FIELDS)).ngroup()
        cell = np.asarray(groups, dtype=np.int64)
        return cls(cell, time, np.log(samples["latency_us"].to_numpy()))


class Polished(NamedTuple):
    """What samples are made of.

    Attributes:
        level: log latency of each cell at the usual speed, float64 [cells].
        slower: what each time adds to it, float64 [times].
        variance: what noise makes of each of these, float64 [times].
    """

    level: Floats
    slower: Floats
    variance: Floats


def polish(timed: Timed, steps: int = STEPS) -> Polished:
    """Take cells and times apart; what times add is zero on average over samples."""
    count = np.bincount(timed.time)
    slower = np.zeros(len(count))
    for _ in range(steps):
        level = _medians(timed.cell, timed.log_us - slower[timed.time])
        off = timed.log_us - level[timed.cell]
        slower = _medians(timed.time, off)
        slower -= count @ slower / len(timed.time)
    spread = _spread(off - slower[timed.time], len(level) + len(slower) - 1)
    return Polished(level, slower, np.pi / 2.0 * spread**2 / count)


def calm(frame: pd.DataFrame) -> pd.DataFrame:
    """The samples of a sweep without those of times of another speed."""
    samples = with_latency(frame).sort_values(["session", "at_unix"], kind="stable")
    timed = Timed.of(samples, np.arange(len(samples)) // IN_A_ROW)
    if len(samples) < FEWEST * (timed.cell.max(initial=0) + 1):
        return frame
    _, slower, variance = polish(timed)
    unusual = np.abs(slower - np.median(slower[timed.time]))
    disturbed = unusual > np.maximum(ANOTHER_SPEED, CERTAIN * np.sqrt(variance))
    return frame.drop(index=samples.index[disturbed[timed.time]])


def _spread(residuals: Floats, fitted: int) -> float:
    """The standard deviation of noise, by its larger residuals.

    A fit by medians goes through as many samples as it has parameters: their residuals
    of zero say nothing of noise, and would halve it where cells have few samples.
    """
    told = np.sort(np.abs(residuals))[min(fitted, len(residuals) - 1) :]
    return MAD_TO_SIGMA * float(np.median(told))


def _medians(group: Ints, values: Floats) -> Floats:
    """The median of each group's values, float64 [groups]."""
    count = np.bincount(group)
    ordered = values[np.lexsort((values, group))]
    start = np.cumsum(count) - count
    middle: Floats = ordered[start + (count - 1) // 2] + ordered[start + count // 2]
    return middle / 2.0
