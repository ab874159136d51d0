"""A fleet on a terminal and as a page: its plan, and what became of each pair."""

import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console

from evict_profile.fleet.folder import FleetFolder
from evict_profile.fleet.plan import FleetPair, FleetPlan
from evict_profile.fleet.spec import AXES
from evict_profile.io import say
from evict_profile.report.render import render
from evict_profile.report.tables import Rows, print_rows
from evict_profile.table import CostTable

MAX_WIDTHS = 12


def show_plan(console: Console, folder: FleetFolder, plan: FleetPlan) -> None:
    """Pairs, cells, and what they cost."""
    columns = {
        "pair": lambda pair: pair.name,
        "shards": lambda pair: pair.shards,
        "cells": lambda pair: pair.cells,
        "device-minutes": lambda pair: _minutes(pair.minutes),
    }
    print_rows(console, Rows.of(plan.pairs, columns))
    say(
        console,
        f"{len(plan.pairs)} pairs, about {_minutes(plan.minutes)} device-minutes at "
        f"the fewest and the most samples; plan {plan.sha256[:16]}, frozen in "
        f"{folder.header_path}",
    )


def show_pairs(console: Console, folder: FleetFolder, plan: FleetPlan) -> None:
    """One line a pair; then where tables are, and why others are missing."""
    outcomes, cells = folder.outcomes(), []
    for pair in plan.pairs:
        rounds, samples, ago = _stored(folder, pair)
        ended = outcomes.get(pair.name)
        state = ended.state if ended else ("begun" if samples else "open")
        tries = ended.tries if ended else 0
        cells.append((pair.name, state, rounds, samples, ago, tries or ""))
    head = ("pair", "state", "rounds", "samples", "minutes ago", "tries")
    print_rows(console, Rows(head, cells))
    for name, ended in outcomes.items():
        say(console, f"{name}: {ended.table or ended.why}")
    states = [row[1] for row in cells]
    counts = (f"{states.count(name)} {name}" for name in dict.fromkeys(states))
    say(console, f"{len(cells)} pairs: {', '.join(counts)}")


def _stored(folder: FleetFolder, pair: FleetPair) -> tuple[int, int, str]:
    """Rounds and samples of all shards, and minutes since the last was stored."""
    shards = [list(folder.store(job).parts.glob("*.parquet")) for job in pair.jobs]
    parts = [path for shard in shards for path in shard]
    if not parts:
        return 0, 0, ""
    rounds = [{path.stem.split("-")[0] for path in shard} for shard in shards]
    samples = sum(pq.read_metadata(path).num_rows for path in parts)
    age_s = time.time() - max(path.stat().st_mtime for path in parts)
    return sum(len(r - {"00000"}) for r in rounds), samples, f"{age_s / 60.0:.1f}"


def _minutes(minutes: tuple[float, float]) -> str:
    return "{:.1f} to {:.1f}".format(*minutes)


def fleet_page(folder: FleetFolder, plan: FleetPlan) -> str:
    """Every pair side by side, from the tables published, and why some are missing."""
    outcomes = folder.outcomes()
    published = {name for name, o in outcomes.items() if o.state == "published"}
    done = [pair for pair in plan.pairs if pair.name in published]
    tables = {p.name: CostTable.load(Path(outcomes[p.name].table)) for p in done}
    widths = shown_widths(list(tables.values()))
    missing = []
    for pair in plan.pairs:
        if pair.name not in published:
            ended = outcomes.get(pair.name)
            told = (ended.state, ended.why) if ended else ("open", "not measured yet")
            missing.append((*(pair.names[axis] for axis in AXES), *told))
    return render(
        "fleet.html.j2",
        title=f"Fleet {plan.fleet}: what verification costs",
        plan=plan,
        sha256=plan.sha256,
        widths=widths,
        done=done,
        tables=tables,
        outcomes=outcomes,
        ratios={name: ratios(table, widths) for name, table in tables.items()},
        gates={n: {g.name: g.message for g in t.gates} for n, t in tables.items()},
        missing=Rows((*AXES, "state", "why"), missing),
    )


def shown_widths(tables: Sequence[CostTable]) -> list[int]:
    """Widths that any table prices at batch 1: all of them, or some spread evenly."""
    every = sorted({n for table in tables for n in table.axes.width if n > 1})
    step = -(-len(every) // MAX_WIDTHS)
    return every[:: -max(1, step)][::-1]


def ratios(table: CostTable, widths: Sequence[int]) -> list[float | None]:
    """C(n)/C(1) at the smallest batch and context; None where n is not priced."""
    batch, context = min(table.axes.batch), min(table.axes.context)
    cost_us = table.price(batch, context).step_cost_us
    base_us = cost_us[batch]
    return [
        float(cost_us[n * batch] / base_us) if n * batch < len(cost_us) else None
        for n in widths
    ]
