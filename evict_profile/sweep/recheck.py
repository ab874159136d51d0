"""Does a table still describe this machine? Measure some of its cells again.

The runner is opened several times, since openings differ as a whole, and each opening
measures every chosen cell once, on the same clock as the table. `change` says what that
tells.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console

from evict_profile.cells import Cell, arrays_of, cells_of, with_latency
from evict_profile.cost_model import features_at
from evict_profile.errors import RunnerError, TableError
from evict_profile.progress import ProgressBar, progress_bar
from evict_profile.records import differences, replace, to_mapping
from evict_profile.runner import RunnerCrash
from evict_profile.stats import Floats
from evict_profile.sweep.change import (
    Levels,
    PooledChange,
    change_between,
    levels_of,
)
from evict_profile.sweep.grid import Grid, make_grid
from evict_profile.sweep.plan import round_order, sample_seed, spread_cells
from evict_profile.sweep.session import OpenRunner
from evict_profile.sweep.speed import Timed
from evict_profile.sweep.store import failed_cells
from evict_profile.table import CostTable, measured

RECHECK_CELLS = 30
RECHECK_OPENINGS = 6
"""With as many behind the table, 3 % are found in 95 of 100 rechecks at 3 % noise."""

RUNNER_SOURCE = "runner_sha256"
"""May differ: whether an edited runner still measures the same is a fair question."""


@dataclass(frozen=True)
class Recheck:
    """Cells of a table, measured again.

    Attributes:
        cells: those that were measured.
        before_us, now_us: their medians on the table's clock, float64 [cells].
        openings: of the runner, behind the table and now.
    """

    cells: tuple[Cell, ...]
    before_us: Floats
    now_us: Floats
    openings: tuple[int, int]
    change: PooledChange


def recheck_cells(
    table: CostTable,
    frame: pd.DataFrame,
    log: Path,
    python: str | None,
    console: Console,
) -> Recheck:
    """Measure some cells of a table again and compare.

    Raises:
        TableError: this machine or engine is not the table's.
        RunnerError: the runner ended; `log`, which its caller deletes, is not named.
    """
    model, sweep = table.model, measured(table.provenance).sweep
    spec = replace(sweep, layers=table.fit.measured_layers, dtype=model.dtype)
    grid, then = make_grid(spec, model), timed_before(frame)
    chosen = recheckable(grid, set(cells_of(then)))
    opened = partial(OpenRunner, spec, model, grid, log, python)
    try:
        with progress_bar(console) as shown:
            now = _measure(table, chosen, opened, shown)
    except RunnerCrash as crash:
        raise RunnerError(crash.words) from crash
    before, after = levels_at(then, chosen), levels_at(now, chosen)
    return Recheck(
        tuple(chosen),
        np.exp(before.of_cell),
        np.exp(after.of_cell),
        (then["session"].nunique(), now["session"].nunique()),
        change_between(before, after, union_shares(table, chosen)),
    )


def check_same_machine(table: CostTable, session: OpenRunner) -> None:
    """Check that the session measures on the table's machine and engine.

    Raises:
        TableError: naming what differs.
    """
    mine, theirs = (
        {name: fact for name, fact in facts.items() if name != RUNNER_SOURCE}
        for facts in (session.facts, table.provenance.fingerprint)
    )
    facts = differences(mine, theirs)
    if facts:
        raise TableError(
            f"this is not what the table was measured on ({'; '.join(facts)}); "
            f"measure this machine with: evict-profile profile --model "
            f"{table.model.name}"
        )


def levels_at(timed: pd.DataFrame, chosen: Sequence[Cell]) -> Levels:
    """Levels of the chosen among all cells, which tell how openings differ.

    Args:
        timed: samples with their `latency_us` and `session`.
    """
    _, opening = np.unique(timed["session"], return_inverse=True)
    levels = levels_of(Timed.of(timed, opening))
    place = {cell: i for i, cell in enumerate(sorted(set(cells_of(timed))))}
    return levels._replace(of_cell=levels.of_cell[[place[c] for c in chosen]])


def recheckable(grid: Grid, known: Collection[Cell]) -> list[Cell]:
    """The cells to measure again: far apart on the grid, of those that are known."""
    levels = tuple(cell for cell in grid.cells if cell in known)
    return spread_cells(replace(grid, cells=levels), RECHECK_CELLS)


def union_shares(table: CostTable, cells: Sequence[Cell]) -> Floats:
    """What share of each cell's cost follows U by the table's fit, float64 [cells]."""
    axes, cost = arrays_of(cells), table.cost
    whole, half = (
        cost.layers.latency_us(
            features_at(
                cost.shape, axes["tokens"], union, axes["context"], axes["batch"]
            )
        )
        for union in (axes["union"], axes["union"] / 2.0)
    )
    shares: Floats = np.clip(2.0 * (1.0 - half / whole), 0.0, 1.0)
    return shares


def _measure(
    table: CostTable,
    cells: Sequence[Cell],
    opened: Callable[[], OpenRunner],
    shown: ProgressBar,
) -> pd.DataFrame:
    """One sample of every cell in each opening, as a frame of timed samples."""
    rows, reference_us = [], measured(table.provenance).reference_us
    for opening in range(RECHECK_OPENINGS):
        with opened() as session:
            check_same_machine(table, session)
            own_seed = session.spec.seed
            for cell in round_order(cells, cells[0], own_seed, opening):
                seed = sample_seed(own_seed, opening, cell, repeat=0)
                answer = session.runner.measure(cell, [seed])[0]
                speed = reference_us / answer["reference_us"] if reference_us else 1.0
                row = {"session": opening, "latency_us": answer["clock_us"] * speed}
                rows.append({**to_mapping(cell), **row})
                left = RECHECK_OPENINGS * len(cells) - len(rows)
                text = f"opening {opening + 1} of {RECHECK_OPENINGS}"
                shown.show(f"{text}: {len(rows)} samples", len(rows), left)
    return pd.DataFrame(rows)


def timed_before(frame: pd.DataFrame) -> pd.DataFrame:
    """The table's samples of forced cells that never failed."""
    timed, failed = with_latency(frame), failed_cells(frame)
    return timed[[c.union > 0 and c not in failed for c in cells_of(timed)]]
