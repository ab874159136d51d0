"""The page of a table composed of public measurements, and its lines on a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from markupsafe import Markup
from rich.console import Console

from evict_profile.cells import cells_of
from evict_profile.io import say
from evict_profile.report.console import Rows, error_rows, print_rows, show_gates
from evict_profile.report.plotting import (
    label_ends,
    line,
    log_axis,
    round_axis,
    shades,
)
from evict_profile.report.render import render
from evict_profile.report.style import canvas, inline_svg
from evict_profile.report.tables import break_even_rows
from evict_profile.stats import Floats
from evict_profile.table import Composition, CostTable, ServedStep
from evict_profile.table.document import samples_of

UNIFORM, IDENTICAL = "uniform routing", "identical tokens"
CLOCKS = {"clock_us", "wall_us", "reference_us"}


def show_composed(console: Console, table: CostTable) -> None:
    """The gates of a composed table, and what more tokens cost by it."""
    show_gates(console, table.gates)
    key = table.key
    say(console, f"{key.model} on {key.where}: {key.engine} {key.engine_version}")
    title = f"C(n)/C(1) at context {min(table.axes.context)}"
    print_rows(console, ratio_rows(table), title)
    assert isinstance(table.provenance, Composition)
    say(console, f"fixed time of a step: {table.provenance.fixed_from}")


def page_of(path: Path) -> str:
    """The page of a composed table's file."""
    table = CostTable.load(path)
    cells = pd.read_parquet(samples_of(path, table.provenance.samples_sha256))
    return composed_page(table, cells)


def composed_page(table: CostTable, cells: pd.DataFrame) -> str:
    """The page of a composed table, from it and the cells beside it."""
    made = table.provenance
    assert isinstance(made, Composition)
    return render(
        "composed.html.j2",
        title=f"What verification costs: {table.key.model} on {table.key.where}",
        table=table,
        overheads=ServedStep.of(table).overheads,
        made=made,
        context=min(table.axes.context),
        growth=growth_curves(table),
        ratios=ratio_rows(table),
        break_even=break_even_rows(table),
        parts=part_rows(cells),
        gates=Rows(("gate", "result"), [(g.name, g.message) for g in table.gates]),
        errors=error_rows(table.fit.held_out),
        dropped=Rows(("rows left out", "count"), sorted(made.rows_dropped.items())),
        files=Rows(("file", "sha256"), sorted(made.files.items())),
    )


@dataclass(frozen=True)
class Growth:
    """Latency at each width (us) for one batch and one kind of routing."""

    batch: int
    routing: str
    widths: Sequence[int]
    us: Floats


def growths(table: CostTable) -> list[Growth]:
    """Of each batch: uniform routing, identical tokens, no routed experts."""
    found, context = [], min(table.axes.context)
    for batch in table.axes.batch:
        widths = [n for n in table.axes.width if n * batch <= table.max_tokens(batch)]
        tokens = np.array(widths, dtype=np.float64) * batch
        unions = {
            UNIFORM: table.activation.at(tokens, batch),
            IDENTICAL: np.full(len(tokens), float(table.model.moe.top_k)),
            "no routed experts": np.zeros(len(tokens)),
        }
        for routing, union in unions.items():
            us = table.cost.latency_us(tokens, union, context, batch)
            found.append(Growth(batch, routing, widths, us))
    return found


def ratio_rows(table: CostTable) -> Rows:
    """C(n)/C(1) at each batch and kind of routing."""
    rows = []
    for growth in growths(table):
        us = growth.us
        times = [f"{each:.2f}" for each in us / us[0]]
        blank = [""] * (len(table.axes.width) - len(times))
        c1_ms = f"{us[0] / 1e3:.2f}"
        rows.append((growth.batch, growth.routing, c1_ms, *times, *blank))
    head = ("batch", "routed experts", "C(1), ms", *map(str, table.axes.width))
    return Rows(head, rows)


def growth_curves(table: CostTable) -> Markup:
    """C(n)/C(1) over n, a line a batch, beside that of identical tokens."""
    colours, ends = shades(table.axes.batch), []
    with canvas(9.6, 4.0) as figure:
        axes = figure.subplots()
        for each in growths(table):
            colour, ratios = colours[each.batch], each.us / each.us[0]
            if each.routing == UNIFORM:
                name = f"batch {each.batch}"
                ends.append(line(axes, each.widths, ratios, name, colour, marker="."))
            elif each.routing == IDENTICAL:
                axes.plot(each.widths, ratios, "--", color=colour, linewidth=1.0)
        log_axis(axes, table.axes.width, "tokens verified of each request, n")
        round_axis(axes)
        label_ends(axes, ends)
        axes.set_title("C(n)/C(1)")
    return inline_svg(figure, "growth", "C(n)/C(1) over n by batch")


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
