import time
from collections.abc import Sequence

import pyarrow.parquet as pq
from rich.console import Console

from evict_profile.fleet.run import FleetFolder
from evict_profile.fleet.spec import Job
from evict_profile.io import say
from evict_profile.report.console import Rows, print_rows
from evict_profile.sweep.grid import make_grid


def show_fleet(console: Console, folder: FleetFolder, jobs: Sequence[Job]) -> None:
    outcomes, cells = folder.outcomes(), []
    for job in jobs:
        parts = [*folder.run(job).store.parts.glob("*.parquet")]
        samples = sum(pq.read_metadata(path).num_rows for path in parts)
        state = "published" if folder.table(job) else ("begun" if parts else "open")
        age_s = time.time() - max((p.stat().st_mtime for p in parts), default=0.0)
        planned = len(make_grid(job.sweep, job.model).measured)
        ago = f"{age_s / 60.0:.1f}" if parts else ""
        cells.append((job.name, state, planned, samples, ago))
    head = ("job", "state", "cells", "samples", "minutes ago")
    print_rows(console, Rows(head, cells))
    for name, ended in outcomes.items():
        say(console, f"{name}: {ended.get('table') or ended['why']}")
    states = [row[1] for row in cells]
    counts = (f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    say(console, f"{len(cells)} jobs: {', '.join(counts)}; plan: {folder.header_path}")
