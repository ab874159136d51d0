"""A fleet on a terminal: its frozen plan, and what became of each pair."""

import time
from typing import NamedTuple

import pyarrow.parquet as pq
from rich.console import Console

from evict_profile.fleet.folder import FleetFolder
from evict_profile.fleet.plan import FleetPlan, ShardJob
from evict_profile.io import say
from evict_profile.report.tables import Rows, print_rows


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
        stored = [_stored(folder, job) for job in pair.jobs]
        rounds, samples = sum(s.rounds for s in stored), sum(s.samples for s in stored)
        ended = outcomes.get(pair.name)
        state = ended.state if ended else ("begun" if samples else "open")
        last = f"{min(s.age_s for s in stored) / 60.0:.1f}" if samples else ""
        cells.append([pair.name, state, rounds, samples, last, ended and ended.tries])
    head = ("pair", "state", "rounds", "samples", "minutes ago", "tries")
    print_rows(console, Rows(head, [[*row[:-1], row[-1] or ""] for row in cells]))
    for name, ended in outcomes.items():
        say(console, f"{name}: {ended.table or ended.why}")
    states = [row[1] for row in cells]
    counts = (f"{states.count(name)} {name}" for name in dict.fromkeys(states))
    say(console, f"{len(cells)} pairs: {', '.join(counts)}")


class _Stored(NamedTuple):
    rounds: int
    samples: int
    age_s: float


def _stored(folder: FleetFolder, job: ShardJob) -> _Stored:
    """What of a shard is here, and seconds since the last of it was stored."""
    parts = sorted(folder.store(job).parts.glob("*.parquet"))
    if not parts:
        return _Stored(0, 0, float("inf"))
    rounds = {path.stem.split("-")[0] for path in parts} - {"00000"}
    samples = sum(pq.read_metadata(path).num_rows for path in parts)
    age_s = time.time() - max(path.stat().st_mtime for path in parts)
    return _Stored(len(rounds), samples, age_s)


def _minutes(minutes: tuple[float, float]) -> str:
    low, high = minutes
    return f"{low:.1f} to {high:.1f}"
