"""Does a table still describe this machine? Measure some of its cells again.

Sessions of a runner differ as a whole, so the runner is opened several times. Each
session measures every chosen cell twice, the first time to warm up. A session's change
is the median, over the cells, of their latency over the table's. The machine's is the
median of the sessions, which lies between the least and the largest of six with a
probability of 1 - 2 / 2^6 = 97 %, however sessions scatter: a machine that is slow for
a while has a few of them far above the others.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from rich.console import Console

from evict_profile.cells import (
    OK,
    Cell,
    Sample,
    cells_of,
    failed_cells,
    reference_mode_us,
    to_frame,
    with_latency,
)
from evict_profile.cells import measured as measured_cells
from evict_profile.config.load import name_or_file
from evict_profile.errors import DataError, MeasurementError
from evict_profile.progress import ProgressBar, progress_bar
from evict_profile.records import differences, replace
from evict_profile.runner import RunnerCrash
from evict_profile.stats import Estimate, Floats
from evict_profile.sweep.engine import judged
from evict_profile.sweep.grid import Grid, make_grid
from evict_profile.sweep.latency import STANDARD_ERRORS
from evict_profile.sweep.plan import round_order, sample_seed, spread_cells
from evict_profile.sweep.session import OpenRunner
from evict_profile.table import CostTable, measured

RECHECK_CELLS, RECHECK_SESSIONS = 30, 6
SAME_WITHIN = 0.05
"""A machine is "same" where it is shown to have changed by no more than this."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, for normal noise."""
RUNNER_SOURCE = "runner_sha256"
"""May differ: whether an edited runner still measures the same is a fair question."""


@dataclass(frozen=True)
class Recheck:
    """`ratio` is latency over the table's, float64 [sessions, cells]; NaN without one.

    `before` is the relative half-width of the table's own latencies, `trend` by how
    much the machine changed while the table was measured.
    """

    cells: tuple[Cell, ...]
    ratio: Floats
    before: float
    trend: float = 0.0

    @property
    def change(self) -> Estimate:
        """Relative change of all costs, with its 95 % interval."""
        level = np.nanmedian(np.log(self.ratio), axis=1)
        middle, ends = np.median(level), np.array([level.min(), level.max()])
        down, up = np.hypot(ends - middle, self.before) + abs(self.trend) / 2.0
        low, value, high = np.expm1([middle - down, middle, middle + up]).tolist()
        return Estimate(value, low, high)

    @property
    def verdict(self) -> Literal["same", "drifted", "unclear"]:
        change = self.change
        if change.low > 0.0 or change.high < 0.0:
            return "drifted"
        most = max(-change.low, change.high)
        return "same" if most <= SAME_WITHIN else "unclear"

    def __str__(self) -> str:
        change = self.change
        return (
            f"{self.verdict}, all cells by {change.value:+.1%} "
            f"({change.low:+.1%}..{change.high:+.1%})"
        )


def recheck_cells(
    table: CostTable,
    frame: pd.DataFrame,
    log: Path,
    python: str | None,
    console: Console,
) -> Recheck:
    model, origin = table.model, measured(table.provenance)
    spec = replace(origin.sweep, layers=table.fit.measured_layers, dtype=model.dtype)
    grid, then = make_grid(spec, model), measured_cells(timed_before(frame))
    chosen = recheckable(grid, set(then.index))
    opened = partial(OpenRunner, spec, model, grid, log, python)
    try:
        with progress_bar(console) as shown:
            samples = _measure(chosen, opened, table, shown)
    except RunnerCrash as crash:
        raise MeasurementError(crash.words) from crash
    sessions = origin.sessions.half_width if origin.sessions else 0.0
    found = compared(then, samples, chosen, origin.reference_us, sessions)
    return replace(found, trend=origin.drift)


def compared(
    then: pd.DataFrame,
    samples: pd.DataFrame,
    chosen: list[Cell],
    reference_us: float | None,
    sessions: float,
) -> Recheck:
    """Samples of a recheck beside the table's own cells.

    Args:
        then: latency and its standard error, as `cells.measured` has them.
        reference_us: of the table's run.
        sessions: relative half-width that its sessions leave to every cost.
    """
    now = _at_reference(samples, chosen, reference_us)
    by_session = now.pivot(index="session", columns="cell", values="latency_us")
    ratio = by_session[chosen] / then["latency_us"].reindex(chosen)
    noise = median_half_width(then["error"].reindex(chosen).to_numpy())
    return Recheck(tuple(chosen), ratio.to_numpy(), float(np.hypot(sessions, noise)))


def median_half_width(error: Floats) -> float:
    """Relative half-width of a median over cells of such standard errors, [cells].

    The usual error counts: a few cells that are far off do not move a median.
    """
    of_mean = float(np.median(error) / np.sqrt(len(error)))
    return STANDARD_ERRORS * MEDIAN_ERROR * of_mean


def check_same_machine(table: CostTable, session: OpenRunner) -> None:
    mine, theirs = (
        {name: fact for name, fact in facts.items() if name != RUNNER_SOURCE}
        for facts in (session.facts, table.provenance.fingerprint)
    )
    if facts := differences(mine, theirs):
        raise DataError(
            f"this is not what the table was measured on ({'; '.join(facts)}); "
            f"measure this machine with: evict-profile sweep "
            f"{name_or_file(table.model.name)}"
        )


def recheckable(grid: Grid, known: Collection[Cell]) -> list[Cell]:
    levels = tuple(cell for cell in grid.cells if cell in known)
    chosen = spread_cells(replace(grid, cells=levels), RECHECK_CELLS)
    return [cell for cell in chosen if cell in known]


def _measure(
    cells: list[Cell],
    opened: Callable[[], OpenRunner],
    table: CostTable,
    shown: ProgressBar,
) -> pd.DataFrame:
    samples: list[Sample] = []
    for number in range(RECHECK_SESSIONS):
        with opened() as session:
            check_same_machine(table, session)
            order = round_order(cells, cells[0], session.spec.seed, number)
            for cell in order:
                session.runner.measure(cell, [0])
            for place, cell in enumerate(order):
                seed = sample_seed(session.spec.seed, number, cell, repeat=0)
                (ran,) = session.runner.measure(cell, [seed])
                sample = Sample(cell, number, place, seed, ran, session=str(number))
                samples.append(judged(sample))
                done, left = len(samples), RECHECK_SESSIONS * len(cells) - len(samples)
                shown.show(f"session {number + 1} of {RECHECK_SESSIONS}", done, left)
    return to_frame(samples)


def _at_reference(
    frame: pd.DataFrame, chosen: list[Cell], reference_us: float | None
) -> pd.DataFrame:
    timed = with_latency(frame)
    timed = timed.assign(cell=pd.Series(cells_of(timed), timed.index, dtype=object))
    if lost := set(chosen) - set(timed["cell"]):
        reason = frame[frame["status"] != OK]["reason"].iloc[0]
        raise MeasurementError(
            f"no sample is usable in {len(lost)} of {len(chosen)} cells ({reason}), so "
            "they cannot be compared; fix the runner"
        )
    usual_us = reference_mode_us(timed)
    scale = reference_us / usual_us if reference_us and usual_us else 1.0
    return timed.assign(latency_us=scale * timed["latency_us"])


def timed_before(frame: pd.DataFrame) -> pd.DataFrame:
    timed, failed = with_latency(frame), failed_cells(frame)
    return timed[[c.union > 0 and c not in failed for c in cells_of(timed)]]
