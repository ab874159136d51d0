"""Does a table still describe this machine? Measure a few of its cells again.

A few cells spread over the grid are measured in interleaved rounds, on the same
clock as the table. Each is "same" within the table's A/A floor (what differs when
nothing does), "drifted" when it differs by more and the intervals are apart, and
"unclear" in between.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from evict_profile.cells import Cell
from evict_profile.config import SweepSpec
from evict_profile.errors import RunnerError, TableError
from evict_profile.records import differences, replace
from evict_profile.runner import RunnerCrash
from evict_profile.stats import Agreement, MedianInterval, compare, median_interval
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.plan import round_order, sample_seed, spread_cells
from evict_profile.sweep.session import Session
from evict_profile.sweep.store import history
from evict_profile.table import CostTable, measured

RECHECK_CELLS = 6
RECHECK_ROUNDS = 9
RUNNER_SOURCE = "runner_sha256"
"""May differ: whether an edited runner still measures the same is a fair question."""

MIN_FLOOR = 0.02
"""An A/A floor below 2 % would call any machine drifted."""


@dataclass(frozen=True)
class Recheck:
    """One cell, then and now, both in microseconds of the table's clock."""

    cell: Cell
    before: MedianInterval
    now: MedianInterval
    verdict: Agreement

    @property
    def change(self) -> float:
        """Relative change of the median."""
        return self.now.median / self.before.median - 1.0


def recheck_cells(
    table: CostTable, frame: pd.DataFrame, log: Path, python: str | None
) -> list[Recheck]:
    """Measure some cells of a table again and compare.

    Raises:
        TableError: this machine or engine is not the table's.
        RunnerError: the runner ended; `log`, which its caller deletes, is not named.
    """
    made = measured(table.provenance)
    spec, model = made.sweep, table.model
    grid = make_grid(spec, model)
    then = {cell: values for cell, values in history(frame).items() if values}
    forced = [c for c in grid.cells if c in then and c.union > 0]
    chosen = spread_cells(replace(grid, cells=tuple(forced)), RECHECK_CELLS)
    opened = replace(spec, layers=table.fit.measured_layers, dtype=model.dtype)
    try:
        with Session(opened, model, grid, log, python) as session:
            check_same_machine(table, session)
            now = _measure(session, opened, chosen)
    except RunnerCrash as crash:
        raise RunnerError(crash.words) from crash
    reference_us = made.reference_us
    return [_compare(table, c, then[c], now[c], reference_us) for c in chosen]


def check_same_machine(table: CostTable, session: Session) -> None:
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


def overall(checks: Sequence[Recheck]) -> Agreement:
    """The verdict of most cells; "unclear" where none has more than half."""
    verdict, count = Counter(check.verdict for check in checks).most_common(1)[0]
    return verdict if count > len(checks) / 2 else "unclear"


def _measure(
    session: Session, spec: SweepSpec, cells: Sequence[Cell]
) -> dict[Cell, list[tuple[float, float]]]:
    """Clock and reference of every sample, cell by cell."""
    seen: dict[Cell, list[tuple[float, float]]] = {cell: [] for cell in cells}
    for number in range(RECHECK_ROUNDS):
        for cell in round_order(cells, cells[0], spec.seed, number):
            seed = sample_seed(spec.seed, number, cell, repeat=0)
            answer = session.runner.measure(cell, [seed])[0]
            seen[cell].append((answer["clock_us"], answer["reference_us"]))
    return seen


def _compare(
    table: CostTable,
    cell: Cell,
    then: Sequence[float],
    now: Sequence[tuple[float, float]],
    reference_us: float | None,
) -> Recheck:
    times = [
        clock * (reference_us / ref if reference_us else 1.0) for clock, ref in now
    ]
    before, after = median_interval(then), median_interval(times)
    floor = max(measured(table.provenance).aa_floor, MIN_FLOOR)
    return Recheck(cell, before, after, compare(before, after, floor))
