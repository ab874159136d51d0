"""The page of an estimated table, and its break-evens on a terminal."""

import shlex
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console

from evict_profile.io import as_json as json_of
from evict_profile.io import say
from evict_profile.report.advice import shell_lines
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
    say(console, wrapped(table.title))
    say(console, wrapped(pays(table), "  "))
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
            "that of other servers. Plain decoding and one K on your server settle it:"
        ),
    )
    names = shlex.join(("--model", key.model, "--gpu", key.gpu, "--shape", str(path)))
    say(console, "  evict-profile probe URL --out runs.jsonl")
    settle = shell_lines(f"evict-profile import runs.jsonl {names}")
    say(console, "\n".join(settle))
    show_gates(console, table.gates)
    say(console, f"table: {path}")
    say(console, f"report: {page}")
    advise = f"evict-profile advise {shlex.quote(str(path))} --accept 3:LENGTH"
    say(console, f"next: {advise}")


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
        parts=part_rows(table, cells),
        errors=error_rows(table.fit.held_out),
        dropped=Rows(("rows left out", "count"), sorted(made.rows_dropped.items())),
        files=Rows(("file", "sha256"), sorted(made.files.items())),
    )


def part_rows(table: CostTable, cells: pd.DataFrame) -> Rows:
    """Microseconds of each part of a layer, and the model's sum, at batch 1.

    U is that of a step; latency is linear in it.
    """
    here = cells[(cells["batch"] == 1) & (cells["context"] == cells["context"].min())]
    layers = here[here["part"] == "layers"].dropna(axis=1, how="all")
    rest = here[here["part"] != "layers"].sort_values("width")
    parts = layers.filter(regex="_us$").drop(columns=CLOCKS, errors="ignore").columns
    rows, count = [], table.model.moe_layers
    for n in table.axes.width:
        own = layers[layers["width"] == n].sort_values("union")
        union = float(table.activation.at(np.array([float(n)]), 1)[0])
        us = [float(np.interp(union, own["union"], own[part])) for part in parts]
        rest_us = float(np.interp(n, rest["width"], rest["clock_us"]))
        ms = f"{(count * sum(us) + rest_us) / 1e3:.2f}"
        rows.append((f"n {n}, U {union:.1f}", *(f"{part:.1f}" for part in us), ms))
    words = (name.removesuffix("_us").replace("_", " ") for name in parts)
    return Rows(("of one layer, us", *words, f"{count} layers and the rest, ms"), rows)
