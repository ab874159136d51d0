"""The page of a table composed of public measurements, and its lines on a terminal."""

from pathlib import Path

import pandas as pd
from rich.console import Console

from evict_profile.cells import cells_of
from evict_profile.io import say
from evict_profile.report.console import Rows, error_rows, print_rows, show_gates
from evict_profile.report.figures_step import served_parts, step_rows
from evict_profile.report.render import render
from evict_profile.table import Composition, CostTable, ServedStep
from evict_profile.table.document import samples_of

CLOCKS = {"clock_us", "wall_us", "reference_us"}


def show_composed(console: Console, table: CostTable) -> None:
    show_gates(console, table.gates)
    key = table.key
    say(console, f"{key.model} on {key.where}: {key.engine} {key.engine_version}")
    title = "a served step that verifies n tokens of each request, 95 % intervals"
    print_rows(console, step_rows(ServedStep.of(table)), title)


def page_of(path: Path) -> str:
    table = CostTable.load(path)
    cells = pd.read_parquet(samples_of(path, table.provenance.samples_sha256))
    return composed_page(table, cells)


def composed_page(table: CostTable, cells: pd.DataFrame) -> str:
    made = table.provenance
    assert isinstance(made, Composition)
    return render(
        "composed.html.j2",
        title=f"What verification costs: {table.key.model} on {table.key.where}",
        table=table,
        made=made,
        **served_parts(table),
        parts=part_rows(cells),
        errors=error_rows(table.fit.held_out),
        dropped=Rows(("rows left out", "count"), sorted(made.rows_dropped.items())),
        files=Rows(("file", "sha256"), sorted(made.files.items())),
    )


def part_rows(cells: pd.DataFrame) -> Rows:
    """Microseconds of each part of a layer, narrow and wide, at batch 1."""
    here = cells[(cells["part"] == "layers") & (cells["batch"] == 1)]
    here = here[here["context"] == here["context"].min()]
    shown = here.groupby("width", as_index=False).last().dropna(axis=1, how="all")
    parts = shown.filter(regex="_us$").drop(columns=CLOCKS, errors="ignore")
    rows = [
        (f"n {cell.width}, U {cell.union}", *(f"{us:.1f}" for us in values))
        for cell, values in zip(cells_of(shown), parts.to_numpy(), strict=True)
    ]
    words = (name.removesuffix("_us").replace("_", " ") for name in parts)
    return Rows(("of one layer, us", *words), rows)
