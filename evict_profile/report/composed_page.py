"""The page of a composed table: what it says, is made of, and leaves out."""

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from evict_profile.cells import cells_of
from evict_profile.report.render import render
from evict_profile.report.tables import Rows, error_rows
from evict_profile.table import Composition, CostTable


def composed_page(table: CostTable, cells: pd.DataFrame) -> str:
    """The whole document, from a composed table and the cells beside it."""
    made = table.provenance
    assert isinstance(made, Composition)
    return render(
        "composed.html.j2",
        title=f"What verification costs: {table.key.model} on {table.key.where}",
        table=table,
        made=made,
        context=min(table.axes.context),
        ratios=ratio_rows(table),
        parts=part_rows(cells),
        gates=Rows.of(
            table.gates,
            {"gate": lambda gate: gate.name, "what it says": lambda gate: gate.message},
        ),
        errors=error_rows(table.fit.held_out),
        dropped=Rows(("rows left out", "count"), sorted(made.rows_dropped.items())),
        files=Rows(("file", "sha256"), sorted(made.files.items())),
    )


def ratio_rows(table: CostTable) -> Rows:
    """C(n)/C(1) at each batch by the union, without experts, and with all alike."""
    rows = []
    context = min(table.axes.context)
    for batch in table.axes.batch:
        widths = [n for n in table.axes.width if n * batch <= table.max_tokens(batch)]
        tokens = np.array(widths, dtype=np.float64) * batch
        for name, union in _unions(table, batch):
            us = table.cost.price(tokens, union(tokens), context, batch)
            times = [f"{each:.2f}" for each in us / us[0]]
            blank = [""] * (len(table.axes.width) - len(times))
            rows.append((batch, name, f"{us[0] / 1e3:.2f}", *times, *blank))
    head = ("batch", "routed experts", "C(1), ms", *map(str, table.axes.width))
    return Rows(head, rows)


def part_rows(cells: pd.DataFrame) -> Rows:
    """Microseconds of each part of a layer, narrow and wide, at batch 1."""
    own = {"clock_us", "wall_us", "reference_us"}
    names = [str(name) for name in cells if str(name).endswith("_us")]
    layers = cells[(cells["part"] == "layers") & (cells["batch"] == 1)]
    shown = layers.groupby(["width", "context"], as_index=False).last()
    shown = shown[shown["context"] == shown["context"].min()].dropna(axis=1, how="all")
    kept = [name for name in names if name in shown and name not in own]
    rows = [
        (f"n {cell.width}, U {cell.union}", *(f"{us:.1f}" for us in values))
        for cell, values in zip(cells_of(shown), shown[kept].to_numpy(), strict=True)
    ]
    words = (name.removesuffix("_us").replace("_", " ") for name in kept)
    return Rows(("of one layer, us", *words), rows)


def _unions(
    table: CostTable, batch: int
) -> Iterator[tuple[str, Callable[[np.ndarray], np.ndarray]]]:
    top_k = float(table.model.moe.top_k)
    yield "by their union", lambda tokens: table.activation.at(tokens, batch)
    yield "all tokens alike", lambda tokens: np.full(len(tokens), top_k)
    yield "none", lambda tokens: np.zeros(len(tokens))
