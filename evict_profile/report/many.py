"""Many tables side by side: those of a fleet, or of all that can be composed."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console

from evict_profile.advice.drafting import over_plain
from evict_profile.fleet.run import FleetFolder
from evict_profile.fleet.spec import Pair
from evict_profile.io import say
from evict_profile.report.render import render
from evict_profile.report.tables import Rows, print_rows
from evict_profile.sweep.grid import make_grid
from evict_profile.table import CostTable

MAX_WIDTHS = 12
WIDE = 32
Outcomes = Mapping[str, Mapping[str, str]]
"""By name the path of its "table", or "why" there is none."""


def many_tables_page(title: str, outcomes: Outcomes, home: Path) -> str:
    """Every table by width, by device, how sure each is, and why others are missing.

    Beside the page, in its home, a report may lie in a folder of each table's name.
    """
    paths = {name: o["table"] for name, o in outcomes.items() if "table" in o}
    tables = {name: CostTable.load(Path(path)) for name, path in paths.items()}
    missing = [(name, o["why"]) for name, o in outcomes.items() if "why" in o]
    report = "{}/report.html"
    return render(
        "many.html.j2",
        title=title,
        counts=counts(outcomes),
        widths=(widths := shown_widths(list(tables.values()))),
        tables=tables,
        ratios={name: ratios(table, widths) for name, table in tables.items()},
        reports={
            n: report.format(n) for n in tables if (home / report.format(n)).is_file()
        },
        quality=Rows.of(
            tables.items(),
            {
                "pair": lambda item: item[0],
                "held-out error": lambda item: item[1].fit.held_out["hinge"],
                "slope in U": lambda item: "".join(
                    g.message for g in item[1].gates if g.name.endswith("slope")
                ),
                "table": lambda item: paths[item[0]],
            },
        ),
        wide=WIDE,
        by_device=by_device(list(tables.values())),
        missing=Rows(("not published", "why"), missing),
    )


def counts(outcomes: Outcomes) -> str:
    """How many have a table, in a sentence."""
    done = sum("table" in outcome for outcome in outcomes.values())
    return f"{done} of {len(outcomes)} pairs have a table"


def shown_widths(tables: Sequence[CostTable]) -> list[int]:
    """Widths that any table covers: all of them, or some spread evenly."""
    every = sorted({n for table in tables for n in table.axes.width if n > 1})
    step = -(-len(every) // MAX_WIDTHS)
    return every[:: -max(1, step)][::-1]


def ratios(table: CostTable, widths: Sequence[int]) -> list[float | None]:
    """C(n)/C(1) at the smallest batch and context; None where n is not covered."""
    batch, context = min(table.axes.batch), min(table.axes.context)
    cost_us = table.step_cost_us(batch, context)
    return [over_plain(cost_us, batch, width) for width in widths]


def by_device(tables: Sequence[CostTable]) -> Rows:
    """C(WIDE)/C(1) by what is served, then by device: the least of its kernels."""
    devices = sorted({table.key.where for table in tables})
    least: dict[tuple[str, str, str], dict[str, float]] = {}
    for table in tables:
        key, [times] = table.key, ratios(table, [WIDE])
        if times is not None:
            own = least.setdefault((key.model, key.engine, key.dtype), {})
            own[key.where] = min(times, own.get(key.where, times))
    rows = [(*of, *(own.get(d) for d in devices)) for of, own in sorted(least.items())]
    return Rows(("model", "engine", "experts", *devices), rows)


def fleet_page(folder: FleetFolder, name: str, pairs: Sequence[Pair]) -> str:
    """The page of a fleet."""
    outcomes = folder.outcomes()
    own = {pair.name: outcomes[pair.name] for pair in pairs}
    return many_tables_page(
        f"Fleet {name}: what verification costs", own, folder.folder
    )


def show_fleet(console: Console, folder: FleetFolder, pairs: Sequence[Pair]) -> None:
    """One line a pair; then where tables are, and why others are missing."""
    outcomes, cells = folder.outcomes(), []
    for pair in pairs:
        parts = [
            p for s in folder.shards(pair) for p in s.store.parts.glob("*.parquet")
        ]
        samples = sum(pq.read_metadata(path).num_rows for path in parts)
        state = "published" if folder.table(pair) else ("begun" if parts else "open")
        age_s = time.time() - max((p.stat().st_mtime for p in parts), default=0.0)
        planned = len(make_grid(pair.sweep, pair.model).measured)
        ago = f"{age_s / 60.0:.1f}" if parts else ""
        cells.append((pair.name, state, pair.shards, planned, samples, ago))
    head = ("pair", "state", "shards", "cells", "samples", "minutes ago")
    print_rows(console, Rows(head, cells))
    for name, ended in outcomes.items():
        say(console, f"{name}: {ended.get('table') or ended['why']}")
    states = [row[1] for row in cells]
    said = (f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    say(console, f"{len(cells)} pairs: {', '.join(said)}; plan: {folder.header_path}")
