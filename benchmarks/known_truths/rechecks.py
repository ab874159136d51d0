"""Does `check --recheck` find what changed, and nothing where nothing did?

Nothing is fitted: a table's samples, and those of a recheck, are drawn from machines
that changed by a known amount, each session of the runner a run of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.known_truths.intervals import SWEEP, demo_grid
from benchmarks.known_truths.worlds import (
    EXPERT_US,
    LAYERS,
    Disturbance,
    Machine,
    Place,
    in_class,
)
from evict_profile.cells import Cell, frame_of, places_of
from evict_profile.stats import Floats
from evict_profile.sweep.change import PooledChange, change_between, levels_of
from evict_profile.sweep.recheck import RECHECK_CELLS, RECHECK_SESSIONS, recheckable

MOST_ALARMS, LEAST_FOUND = 0.12, 0.90
"""Of unchanged machines called drifted, and of those 10 % slower, whose sessions differ
by 1 %. The aim of 0.03 false alarms is missed."""

ROUNDS = SWEEP.stop.min_samples
WARM_IN_SAMPLES = 60.0
"""Within so many samples of a session the machine comes 63 % of the way to its end."""

NOISES = {
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


@dataclass(frozen=True)
class Recheck:
    """A table measured once with so many sessions of the runner, then rechecked."""

    name: str
    sessions: int


KNOWN = tuple(
    Recheck(noise, sessions) for sessions in (1, SWEEP.sessions) for noise in NOISES
)


@dataclass(frozen=True)
class Change:
    """What changed: every cost, and the cost of an expert; the mean may be put back."""

    all_cells: float = 0.0
    expert: float = 0.0
    same_mean: bool = False

    def ratio(self, cells: Sequence[Cell]) -> Floats:
        """Cost now over then, float64 [cells]."""
        expert_us = LAYERS * EXPERT_US * places_of(frame_of(cells))[1]
        ratio = 1.0 + self.expert * expert_us / _cost_us(cells)
        ratio *= 1.0 + self.all_cells
        return ratio / np.exp(self.same_mean * np.log(ratio).mean())


CHANGES = {
    "nothing": Change(),
    "+3 %": Change(0.03),
    "+5 %": Change(0.05),
    "+10 %": Change(0.10),
    "U +10 %": Change(expert=0.10),
    "U +10 %, mean as before": Change(expert=0.10, same_mean=True),
}


def judged(recheck: Recheck, seed: int) -> Iterator[dict[str, Any]]:
    """One row a change."""
    for name, change in changes(recheck, seed):
        largest = np.abs(CHANGES[name].ratio(_cells()[1]) - 1.0).max()
        yield {
            "sessions": recheck.sessions,
            "change": name,
            "verdict": change.verdict,
            "within": change.within,
            "beyond": bool(largest > change.within),
            "detectable": change.mean.detectable,
        }


def changes(recheck: Recheck, seed: int) -> Iterator[tuple[str, PooledChange]]:
    """Draw a table's samples and those of a recheck; compare them after each change."""
    known, chosen = _cells()
    count = recheck.sessions + RECHECK_SESSIONS
    seeds = np.random.default_rng(seed).integers(0, 2**31, count)
    noise = NOISES[recheck.name]
    machines = [Machine(_cached_cost, noise, int(each)) for each in seeds]
    then = _samples(known, machines[: recheck.sessions], ROUNDS)
    warm_up = (ROUNDS / recheck.sessions * len(known) - len(chosen)) / 2.0
    now = _samples(chosen, machines[recheck.sessions :], RECHECK_SESSIONS, warm_up)
    before, same = levels_of(then, chosen), levels_of(now, chosen)
    for name, change in CHANGES.items():
        # A factor on all samples of a cell moves its level, and nothing else.
        after = same._replace(of_cell=same.of_cell + np.log(change.ratio(chosen)))
        yield name, change_between(before, after, _union_share())


def _samples(
    cells: Sequence[Cell],
    machines: Sequence[Machine],
    rounds: int,
    warm_up: float = 0.0,
) -> pd.DataFrame:
    """Timed samples in so many rounds, each on the next of the machines in turn.

    A session first runs `warm_up` samples that it does not record.
    """
    rows = []
    for number in range(rounds):
        turn, session = divmod(number, len(machines))
        order = np.random.default_rng(number).permutation(len(cells))
        for late, cell in enumerate(cells[place] for place in order):
            ran = warm_up + turn * len(cells) + late
            warm = 1.0 - np.exp(-ran / WARM_IN_SAMPLES)
            union = float(cell.union)
            clock_us, reference = machines[session].sample_us(cell, union, warm)
            paired_us = clock_us * (1.0 if np.isnan(reference) else 2e4 / reference)
            rows.append({**vars(cell), "session": session, "latency_us": paired_us})
    return pd.DataFrame(rows)


@cache
def _cells() -> tuple[tuple[Cell, ...], tuple[Cell, ...]]:
    """The sweep's forced cells, and those that a recheck measures."""
    grid = demo_grid()
    known = tuple(c for c in grid.cells if c.union > 0)
    return known, tuple(recheckable(grid, known))


@cache
def _union_share() -> Floats:
    """Of each chosen cell's true cost, what follows U, float64 [cells]."""
    chosen = _cells()[1]
    half = [replace(cell, union=cell.union // 2) for cell in chosen]
    return 2.0 * (1.0 - _cost_us(half) / _cost_us(chosen))


def _cost_us(cells: Sequence[Cell]) -> Floats:
    return in_class(Place(*places_of(frame_of(cells))))


@cache
def _place_us(*place: float) -> float:
    return float(in_class(Place(*map(np.array, place))))


def _cached_cost(place: Place) -> Floats:
    return np.array(_place_us(*map(float, place)))


def misses(rows: pd.DataFrame) -> Iterator[str]:
    """Promises of rechecks that are not met."""
    differ = rows[~rows["world"].str.contains("runs")]
    drifted = (differ["verdict"] == "drifted").groupby(differ["change"]).mean()
    if drifted["nothing"] > MOST_ALARMS:
        yield f"{drifted['nothing']:.1%} of unchanged machines are called drifted"
    if drifted["+10 %"] < LEAST_FOUND:
        yield f"{drifted['+10 %']:.1%} of machines 10 % slower are called drifted"


def show(rows: pd.DataFrame) -> None:
    """Drifted/unclear/same in %, and what is said of "same", one line a noise.

    Beyond x: how often a cell changed by more than the x of "same within x".
    """
    for sessions, own in rows.groupby("sessions"):
        print(
            f"\nsessions behind the table: {sessions}, of the recheck: "
            f"{RECHECK_SESSIONS}; cells: {RECHECK_CELLS}; drifted/unclear/same, %"
        )
        by_noise = own.groupby("world", sort=False)
        lines = {noise: _line(those) for noise, those in by_noise}
        print(pd.DataFrame.from_dict(lines, orient="index").to_string())


def _line(rows: pd.DataFrame) -> dict[str, str]:
    nothing = rows[rows["change"] == "nothing"]
    median = 100.0 * nothing[["within", "detectable"]].median()
    verdicts = rows.groupby("change", sort=False)["verdict"]
    return {
        **{name: _shares(each) for name, each in verdicts},
        "beyond x %": f"{100.0 * rows['beyond'].mean():.1f}",
        "x of nothing %": f"{median['within']:.1f}",
        "found in 95 %": f"{median['detectable']:.1f}",
    }


def _shares(verdicts: pd.Series) -> str:
    kinds = ("drifted", "unclear", "same")
    return "/".join(f"{100.0 * (verdicts == kind).mean():.0f}" for kind in kinds)
