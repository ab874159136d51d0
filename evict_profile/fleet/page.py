"""A fleet as a page and on a terminal."""

import time
from collections.abc import Sequence

import pyarrow.parquet as pq
from rich.console import Console

from evict_profile.fleet.run import FleetFolder
from evict_profile.fleet.spec import Pair
from evict_profile.io import say
from evict_profile.report.console import Rows, print_rows
from evict_profile.report.many import many_tables_page
from evict_profile.sweep.grid import make_grid


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
