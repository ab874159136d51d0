"""What public measurements offer, and the page of a table composed of them."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from rich.console import Console

from evict_profile.cells import cells_of
from evict_profile.config.model import known_models, load_model
from evict_profile.io import say
from evict_profile.report.console import show_gates
from evict_profile.report.render import render
from evict_profile.report.tables import (
    Rows,
    break_even_rows,
    error_rows,
    print_rows,
)
from evict_profile.sources.aiconfigurator import ATTRIBUTION, LICENCE, PACKAGE, VERSION
from evict_profile.sources.pairs import Pair, shape_of
from evict_profile.table import Composition, CostTable

SOURCE = f"{PACKAGE} {VERSION} ({LICENCE}), {ATTRIBUTION}"
HEAD = ("GPU", "engine", "version", "dtype")
CLOCKS = {"clock_us", "wall_us", "reference_us"}


def show_offers(console: Console, pairs: Sequence[Pair]) -> None:
    """One line a GPU, engine, version and data type, with the models of `configs/`."""
    models = [load_model(str(path)) for path in known_models()]
    names = {shape_of(model): model.name for model in models}
    shapes: dict[tuple[str, ...], set[tuple[int, int, int, int]]] = {}
    for pair in pairs:
        where = (pair.gpu, pair.engine, pair.version, pair.dtype)
        shapes.setdefault(where, set()).add(pair.shape)
    cells = [
        (
            *where,
            ", ".join(sorted(names[s] for s in own & names.keys())) or "-",
            len(own - names.keys()),
        )
        for where, own in sorted(shapes.items())
    ]
    print_rows(console, Rows((*HEAD, "models", "other shapes"), cells))
    say(console, f"rows of {SOURCE}")


def show_pairs(console: Console, pairs: Sequence[Pair]) -> None:
    """One line a kernel of one model, with the shardings that were measured."""
    shardings: dict[tuple[str, ...], list[str]] = {}
    for pair in pairs:
        where = (pair.gpu, pair.engine, pair.version, pair.dtype, pair.kernel)
        shardings.setdefault(where, []).append(f"{pair.tp}x{pair.ep}")
    cells = [(*where, " ".join(how)) for where, how in shardings.items()]
    print_rows(console, Rows((*HEAD, "kernel", "tp x ep"), cells))


def show_refused(console: Console, outcomes: Mapping[str, Mapping[str, str]]) -> None:
    """How many pairs each gate refuses first."""
    first = Counter(o["why"].partition(":")[0] for o in outcomes.values() if "why" in o)
    print_rows(console, Rows(("refused by", "pairs"), first.most_common()))


def show_composed(console: Console, table: CostTable) -> None:
    """The gates of a composed table, and what a wider step costs by it."""
    show_gates(console, table.gates)
    key = table.key
    say(console, f"{key.model} on {key.where}: {key.engine} {key.engine_version}")
    title = f"C(n)/C(1) at context {min(table.axes.context)}"
    print_rows(console, ratio_rows(table), title)
    assert isinstance(table.provenance, Composition)
    say(console, f"fixed time of a step: {table.provenance.fixed_from}")


def composed_page(table: CostTable, cells: pd.DataFrame) -> str:
    """The page of a composed table, from it and the cells beside it."""
    made = table.provenance
    assert isinstance(made, Composition)
    return render(
        "composed.html.j2",
        title=f"What verification costs: {table.key.model} on {table.key.where}",
        table=table,
        made=made,
        context=min(table.axes.context),
        ratios=ratio_rows(table),
        break_even=break_even_rows(table),
        parts=part_rows(cells),
        gates=Rows(
            ("gate", "what it says"), [(g.name, g.message) for g in table.gates]
        ),
        errors=error_rows(table.fit.held_out),
        dropped=Rows(("rows left out", "count"), sorted(made.rows_dropped.items())),
        files=Rows(("file", "sha256"), sorted(made.files.items())),
    )


def ratio_rows(table: CostTable) -> Rows:
    """C(n)/C(1) at each batch by the union, with all tokens alike, without experts."""
    rows = []
    context = min(table.axes.context)
    for batch in table.axes.batch:
        widths = [n for n in table.axes.width if n * batch <= table.max_tokens(batch)]
        tokens = np.array(widths, dtype=np.float64) * batch
        unions = {
            "by their union": table.activation.at(tokens, batch),
            "all tokens alike": np.full(len(tokens), float(table.model.moe.top_k)),
            "none": np.zeros(len(tokens)),
        }
        for name, union in unions.items():
            us = table.cost.latency_us(tokens, union, context, batch)
            times = [f"{each:.2f}" for each in us / us[0]]
            blank = [""] * (len(table.axes.width) - len(times))
            rows.append((batch, name, f"{us[0] / 1e3:.2f}", *times, *blank))
    head = ("batch", "routed experts", "C(1), ms", *map(str, table.axes.width))
    return Rows(head, rows)


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
