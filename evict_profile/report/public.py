"""The page of an estimated table, and its break-evens on a terminal."""

import shlex
from pathlib import Path

import pandas as pd
from rich.console import Console

from evict_profile.cells import cells_of
from evict_profile.io import as_json as json_of
from evict_profile.io import say
from evict_profile.report.console import (
    Rows,
    error_rows,
    print_rows,
    show_gates,
    wrapped,
)
from evict_profile.report.figures_step import served_parts
from evict_profile.report.pays import break_evens, how_to_decide, pays
from evict_profile.report.render import render
from evict_profile.served.growth import EXPONENT
from evict_profile.table import Composition, CostTable
from evict_profile.table.document import samples_of

CLOCKS = {"clock_us", "wall_us", "reference_us"}


def show_estimate(
    console: Console, table: CostTable, path: Path, page: Path, as_json: bool
) -> None:
    rows, key = break_evens(table), table.key
    if as_json:
        files = {"table": str(path), "report": str(page)}
        say(console, json_of({**files, "break_evens": rows.records}))
        return
    show_gates(console, table.gates)
    say(console, table.title)
    print_rows(
        console,
        rows,
        "tokens a step must commit for K drafts to pay (95 %)",
    )
    say(
        console,
        wrapped(
            "Kernels leave out drafting and the host, so a batch has the mean of their "
            f"growth and that of any server, n^{EXPONENT}, n = K + 1; the error is "
            "that of other servers. Plain decoding and one K on your server "
            "settle it: evict-profile probe URL --out runs.jsonl, and: "
            "evict-profile import runs.jsonl --model "
            f"{key.model} --gpu '{key.gpu}' --shape {shlex.quote(str(path))}"
        ),
    )
    say(console, f"table: {path}")
    say(console, f"report: {page}")


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
        decision=pays(table),
        command=how_to_decide(table),
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
