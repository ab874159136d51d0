"""Does `check --recheck` find what changed, and nothing where nothing did?

    python -m benchmarks.known_truths.rechecks --times 100

Prints, for machines that changed by a known amount, how often in 100 the verdict is
drifted/unclear/same, and how often the change of a cell was larger than the x of "same
within x". Nothing is fitted: a table's samples, and those of a recheck, are drawn from
`worlds`, each session of the runner a run of its own.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import Pool
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from benchmarks.common import command, count, restart_on_one_thread
from benchmarks.known_truths.sweeps import SWEEP, demo_grid
from benchmarks.known_truths.worlds import (
    EXPERT_US,
    LAYERS,
    Disturbance,
    Machine,
    in_class,
)
from evict_profile.cells import Cell, arrays_of
from evict_profile.progress import progress_bar
from evict_profile.stats import Floats
from evict_profile.sweep.change import PooledChange, change_between, levels_of
from evict_profile.sweep.recheck import (
    RECHECK_CELLS,
    RECHECK_SESSIONS,
    recheckable,
)

ROUNDS = SWEEP.stop.min_samples
DISTURBANCES = {
    "1 % noise": Disturbance(0.01, run=0.01),
    "3 % noise": Disturbance(0.03, run=0.01),
    "8 % noise": Disturbance(0.08, run=0.01),
    "3 % noise, runs alike": Disturbance(0.03),
    "3 % noise, runs differ by 2 %": Disturbance(0.03, run=0.02),
    "heavy tails": Disturbance(0.015, tail="heavy", run=0.01),
    "floor and upper tail": Disturbance(0.02, tail="floor", run=0.01),
    "5 % take twice as long": Disturbance(outliers=0.05, run=0.01),
    "half speed a fifth of the time": Disturbance(half=0.2, run=0.01),
    "the same, with reference": Disturbance(half=0.2, reference=True, run=0.01),
    "8 % slower as a session warms up": Disturbance(0.01, run=0.01, drift=0.08),
}
WARM_IN_SAMPLES = 60.0
"""Within so many samples of a session the machine comes 63 % of the way to its end."""

SESSIONS = (1, SWEEP.sessions)
"""Of the runner, behind the table."""

VERDICTS = ("drifted", "unclear", "same")


@dataclass(frozen=True)
class Changed:
    """What changed: every cost, and the cost of an expert; the mean may be put back."""

    all_cells: float = 0.0
    expert: float = 0.0
    same_mean: bool = False

    def ratio(self, cells: Sequence[Cell]) -> Floats:
        """Cost now over then, float64 [cells]."""
        before = _cost_us(cells)
        expert_us = LAYERS * EXPERT_US * arrays_of(cells)["union"]
        ratio = (1.0 + self.all_cells) * (1.0 + self.expert * expert_us / before)
        return ratio / np.exp(self.same_mean * np.log(ratio).mean())


CHANGES = {
    "nothing": Changed(),
    "+3 %": Changed(0.03),
    "+5 %": Changed(0.05),
    "+10 %": Changed(0.10),
    "U +10 %": Changed(expert=0.10),
    "U +10 %, mean as before": Changed(expert=0.10, same_mean=True),
}


@dataclass(frozen=True)
class Job:
    """A table measured once, then rechecked after each change."""

    noise: str
    sessions: int
    seed: int


@cache
def cells() -> tuple[tuple[Cell, ...], tuple[Cell, ...]]:
    """The demo's forced cells, and those that a recheck measures."""
    grid = demo_grid()
    known = tuple(c for c in grid.cells if c.union > 0)
    return known, tuple(recheckable(grid, known))


def samples(
    measured: Sequence[Cell],
    machines: Sequence[Machine],
    rounds: int,
    warm_up: float = 0.0,
) -> pd.DataFrame:
    """Timed samples in so many rounds, each on the next of the machines in turn.

    Args:
        warm_up: samples that a session runs first, and does not record.
    """
    rows = []
    for number in range(rounds):
        machine = machines[number % len(machines)]
        ran = warm_up + number // len(machines) * len(measured)
        order = np.random.default_rng(number).permutation(len(measured))
        for late, cell in enumerate(measured[place] for place in order):
            warm = 1.0 - np.exp(-(ran + late) / WARM_IN_SAMPLES)
            clock, reference = machine.sample_us(cell, float(cell.union), warm)
            paired = 1.0 if np.isnan(reference) else 2e4 / reference
            session = number % len(machines)
            latency_us = clock * paired
            rows.append({**vars(cell), "session": session, "latency_us": latency_us})
    return pd.DataFrame(rows)


def changes(job: Job) -> Iterator[tuple[str, PooledChange]]:
    """Draw a table's samples and those of a recheck; compare them after each change."""
    known, chosen = cells()
    count = job.sessions + RECHECK_SESSIONS
    seeds = np.random.default_rng(job.seed).integers(0, 2**31, count)
    disturbance = DISTURBANCES[job.noise]
    machines = [Machine(_cached_cost, disturbance, int(seed)) for seed in seeds]
    then = samples(known, machines[: job.sessions], ROUNDS)
    warm_up = (ROUNDS / job.sessions * len(known) - len(chosen)) / 2.0
    now = samples(chosen, machines[job.sessions :], RECHECK_SESSIONS, warm_up)
    before, same = levels_of(then, chosen), levels_of(now, chosen)
    for name, changed in CHANGES.items():
        # A factor on all samples of a cell moves its level, and nothing else.
        after = same._replace(of_cell=same.of_cell + np.log(changed.ratio(chosen)))
        yield name, change_between(before, after, union_share())


@cache
def union_share() -> Floats:
    """Of each chosen cell's true cost, what follows U, float64 [cells]."""
    chosen = cells()[1]
    half = [replace(cell, union=cell.union // 2) for cell in chosen]
    return 2.0 * (1.0 - _cost_us(half) / _cost_us(chosen))


def judged(job: Job) -> list[dict[str, Any]]:
    """One row a change."""
    rows = []
    for name, change in changes(job):
        largest = float(np.abs(CHANGES[name].ratio(cells()[1]) - 1.0).max())
        rows.append(
            {
                **vars(job),
                "change": name,
                "verdict": change.verdict,
                "within": change.within,
                "beyond": largest > change.within,
                "detectable": change.mean.detectable,
            }
        )
    return rows


def _cost_us(of: Sequence[Cell]) -> Floats:
    axes = arrays_of(of)
    return in_class(*(axes[a] for a in ("tokens", "union", "context", "batch")))


@cache
def _place_us(tokens: float, union: float, context: float, batch: float) -> float:
    return float(in_class(*map(np.array, (tokens, union, context, batch))))


def _cached_cost(*place: Floats) -> Floats:
    return np.array(_place_us(*map(float, place)))


def show(rows: pd.DataFrame) -> None:
    """Drifted/unclear/same in %, and what is said of "same", one line a noise."""
    for sessions, own in rows.groupby("sessions"):
        print(
            f"\nsessions behind the table: {sessions}, of the recheck: "
            f"{RECHECK_SESSIONS}; cells: {RECHECK_CELLS}; drifted/unclear/same, %"
        )
        by_noise = own.groupby("noise", sort=False)
        lines = {noise: _line(those) for noise, those in by_noise}
        print(pd.DataFrame.from_dict(lines, orient="index").to_string())


def _line(rows: pd.DataFrame) -> dict[str, str]:
    """Columns of one noise."""
    nothing = rows[rows["change"] == "nothing"]
    median = 100.0 * nothing[["within", "detectable"]].median()
    return {
        **{name: _shares(each) for name, each in rows.groupby("change", sort=False)},
        "beyond x %": f"{100.0 * rows['beyond'].mean():.1f}",
        "x of nothing %": f"{median['within']:.1f}",
        "found in 95 %": f"{median['detectable']:.1f}",
    }


def _shares(rows: pd.DataFrame) -> str:
    share = [100.0 * (rows["verdict"] == verdict).mean() for verdict in VERDICTS]
    return "/".join(f"{each:.0f}" for each in share)


@command
def main(arguments: Sequence[str]) -> None:
    """Recheck every machine after every change."""
    parser = argparse.ArgumentParser(prog="rechecks", description=__doc__)
    parser.add_argument("--times", type=count, default=100, help="tables of each noise")
    parser.add_argument("--jobs", type=count, default=2, help="processes")
    asked = parser.parse_args(arguments)
    jobs = [
        Job(noise, sessions, seed)
        for sessions in SESSIONS
        for noise in DISTURBANCES
        for seed in range(asked.times)
    ]
    rows: list[dict[str, Any]] = []
    with Pool(asked.jobs) as pool, progress_bar(Console(stderr=True)) as shown:
        for done, found in enumerate(pool.imap(judged, jobs, chunksize=4), start=1):
            rows += found
            shown.show(f"rechecked {found[0]['noise']}", done, len(jobs) - done)
    show(pd.DataFrame(rows))


if __name__ == "__main__":
    restart_on_one_thread()
    sys.exit(main(sys.argv[1:]))
