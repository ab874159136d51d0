"""Does a table still describe this machine? Measure some of its cells again.

The runner is opened several times, since sessions differ as a whole, and each session
measures every chosen cell once, on the same clock as the table. A machine that warms up
is slower late in a session, so other cells run first: as many as ran in the table's
sessions before a sample, on average. `change` judges the samples.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console

from evict_profile.cells import (
    OK,
    Cell,
    Sample,
    cells_of,
    failed_cells,
    frame_of,
    places_of,
    reference_mode_us,
    to_frame,
    with_latency,
)
from evict_profile.config.load import name_or_file
from evict_profile.cost_model import features_at
from evict_profile.errors import DataError, MeasurementError
from evict_profile.progress import ProgressBar, progress_bar
from evict_profile.records import differences, replace
from evict_profile.runner import RunnerCrash
from evict_profile.stats import Floats
from evict_profile.sweep.change import (
    PooledChange,
    change_between,
    levels_of,
)
from evict_profile.sweep.engine import judged
from evict_profile.sweep.grid import Grid, make_grid
from evict_profile.sweep.plan import round_order, sample_seed, spread_cells
from evict_profile.sweep.session import OpenRunner
from evict_profile.table import CostTable, measured

RECHECK_CELLS = 30
RECHECK_SESSIONS = 6
"""With as many behind the table, 3 % are found in 9 of 10 rechecks at 3 % noise."""

WARM_UP_S = 60.0
"""The longest warm-up of a session."""

RUNNER_SOURCE = "runner_sha256"
"""May differ: whether an edited runner still measures the same is a fair question."""


@dataclass(frozen=True)
class Recheck:
    """Cells of a table, measured again.

    Attributes:
        cells: those that were measured.
        before_us, now_us: their medians on the table's clock, float64 [cells].
        sessions: of the runner, behind the table and now.
    """

    cells: tuple[Cell, ...]
    before_us: Floats
    now_us: Floats
    sessions: tuple[int, int]
    change: PooledChange


def recheck_cells(
    table: CostTable,
    frame: pd.DataFrame,
    log: Path,
    python: str | None,
    console: Console,
) -> Recheck:
    model, sweep = table.model, measured(table.provenance).sweep
    spec = replace(sweep, layers=table.fit.measured_layers, dtype=model.dtype)
    grid, then = make_grid(spec, model), timed_before(frame)
    chosen = recheckable(grid, set(cells_of(then)))
    opened = partial(OpenRunner, spec, model, grid, log, python)
    try:
        with progress_bar(console) as shown:
            now = _measure(chosen, warm_up(frame, then, chosen), opened, table, shown)
    except RunnerCrash as crash:
        raise MeasurementError(crash.words) from crash
    now = _at_reference(now, chosen, measured(table.provenance).reference_us)
    before, after = levels_of(then, chosen), levels_of(now, chosen)
    return Recheck(
        tuple(chosen),
        np.exp(before.of_cell),
        np.exp(after.of_cell),
        (then["session"].nunique(), now["session"].nunique()),
        change_between(before, after, union_shares(table, chosen)),
    )


def check_same_machine(table: CostTable, session: OpenRunner) -> None:
    mine, theirs = (
        {name: fact for name, fact in facts.items() if name != RUNNER_SOURCE}
        for facts in (session.facts, table.provenance.fingerprint)
    )
    facts = differences(mine, theirs)
    if facts:
        raise DataError(
            f"this is not what the table was measured on ({'; '.join(facts)}); "
            f"measure this machine with: evict-profile sweep "
            f"{name_or_file(table.model.name)}"
        )


def recheckable(grid: Grid, known: Collection[Cell]) -> list[Cell]:
    """The cells to measure again: far apart on the grid, of those that are known."""
    levels = tuple(cell for cell in grid.cells if cell in known)
    return spread_cells(replace(grid, cells=levels), RECHECK_CELLS)


def union_shares(table: CostTable, cells: Sequence[Cell]) -> Floats:
    """What share of each cell's cost follows U by the table's fit, float64 [cells]."""
    tokens, union, context, batch = places_of(frame_of(cells))
    cost = table.cost
    whole, half = (
        cost.layers.latency_us(features_at(cost.shape, tokens, u, context, batch))
        for u in (union, union / 2.0)
    )
    shares: Floats = np.clip(2.0 * (1.0 - half / whole), 0.0, 1.0)
    return shares


def warm_up(
    frame: pd.DataFrame, then: pd.DataFrame, chosen: Sequence[Cell]
) -> list[Cell]:
    """What runs first in a session, for its samples to lie as late as the table's.

    Args:
        frame: all samples behind the table, in the order measured.
        then: those of cells that can be measured again.
    """
    before = frame[frame["status"] == OK].groupby("session").cumcount().mean()
    others = sorted(set(cells_of(then)) - set(chosen)) or list(chosen)
    count = max(0, round(before - (len(chosen) - 1) / 2.0))
    return list(islice(cycle(round_order(others, others[0], 0, 0)), count))


def _measure(
    cells: Sequence[Cell],
    first: Sequence[Cell],
    opened: Callable[[], OpenRunner],
    table: CostTable,
    shown: ProgressBar,
) -> pd.DataFrame:
    """One sample of every cell in each session, behind its warm-up."""
    samples: list[Sample] = []
    for number in range(RECHECK_SESSIONS):
        text = f"session {number + 1} of {RECHECK_SESSIONS}"
        with opened() as session:
            check_same_machine(table, session)
            _run_unrecorded(session, first)
            seed = session.spec.seed
            for order, cell in enumerate(round_order(cells, cells[0], seed, number)):
                own = sample_seed(seed, number, cell, repeat=0)
                blank = Sample(cell, number, order, own, session=str(number))
                answer = session.runner.measure(cell, [own])[0]
                samples.append(judged(replace(blank, **answer)))
                left = RECHECK_SESSIONS * len(cells) - len(samples)
                shown.show(f"{text}: {len(samples)} samples", len(samples), left)
    return to_frame(samples)


def _run_unrecorded(session: OpenRunner, cells: Sequence[Cell]) -> None:
    """As many of the cells as the time of a warm-up allows."""
    end = time.monotonic() + WARM_UP_S
    for number, cell in enumerate(cells):
        if time.monotonic() >= end:
            return
        session.runner.measure(cell, [number])


def _at_reference(
    frame: pd.DataFrame, chosen: Sequence[Cell], reference_us: float | None
) -> pd.DataFrame:
    """The timed samples, at the speed of the table's reference where it has one."""
    timed = with_latency(frame)
    if lost := set(chosen) - set(cells_of(timed)):
        reason = frame[frame["status"] != OK]["reason"].iloc[0]
        raise MeasurementError(
            f"no sample is usable in {len(lost)} of {len(chosen)} cells ({reason}), so "
            "they cannot be compared; fix the runner"
        )
    usual_us = reference_mode_us(timed)
    scale = reference_us / usual_us if reference_us and usual_us else 1.0
    return timed.assign(latency_us=scale * timed["latency_us"])


def timed_before(frame: pd.DataFrame) -> pd.DataFrame:
    """The table's samples of forced cells that never failed."""
    timed, failed = with_latency(frame), failed_cells(frame)
    return timed[[c.union > 0 and c not in failed for c in cells_of(timed)]]
