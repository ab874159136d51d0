"""Do gates refuse runs of machines that changed, and let healthy ones pass?

Judged are the gates that need samples alone: copies, drift, A/A floor. Samples are
drawn round by round in the sweep's order, without the engine.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.known_truths.intervals import SWEEP, KnownRunner, demo_grid
from benchmarks.known_truths.worlds import Disturbance, Machine, in_class
from evict_profile.cells import Sample, samples_by_cell, to_frame
from evict_profile.errors import DataError
from evict_profile.fit.gates import aa_gate, drift_gate
from evict_profile.fit.provenance import aa_floor
from evict_profile.io import make_folder
from evict_profile.sweep.grid import Grid
from evict_profile.sweep.latency import Samples
from evict_profile.sweep.plan import round_order
from evict_profile.sweep.store import Store

MOST_HEALTHY, LEAST_CHANGED = 0.01, 0.90
"""Of healthy and of changed machines refused."""

GATES = ("copies", "drift", "A/A floor")
ROUNDS = SWEEP.stop.min_samples


@dataclass(frozen=True)
class Run:
    """A way to run a sweep.

    Attributes:
        bad: whether gates must refuse it.
        copied: whether the samples of a round are there twice.
        sessions: of the runner.
    """

    name: str
    machine: Disturbance
    bad: bool = False
    copied: bool = False
    sessions: int = SWEEP.sessions


NOISES = {
    "1 %": Disturbance(),
    "3 %": Disturbance(0.03),
    "8 %": Disturbance(0.08),
    "heavy tails": Disturbance(0.015, tail="heavy"),
    "floor and upper tail": Disturbance(0.02, tail="floor"),
    "5 % take twice as long": Disturbance(outliers=0.05),
    "half speed a fifth of the time": Disturbance(half=0.2),
    "the same, with reference": Disturbance(half=0.2, reference=True),
    "cells differ by 2 %": Disturbance(cell=0.02),
    "sessions differ by 2 %": Disturbance(run=0.02),
    "drift of 3 %": Disturbance(drift=0.03),
    "heavy, outliers, drift": Disturbance(0.02, "heavy", outliers=0.03, drift=0.02),
}
CHANGED = ("1 %", "3 %", "8 %")
DISTURBED: dict[str, dict[str, Any]] = {
    "drift of 5 %": {"drift": 0.05},
    "drift of 7 %": {"drift": 0.07},
    "step of 5 %": {"slow": (0.05, 0.5, 2.0)},
    "middle third 20 % slower": {"slow": (0.2, 1 / 3, 2 / 3)},
    "first answers repeated": {"repeats": True},
}
RUN: dict[str, dict[str, Any]] = {
    "a round copied": {"copied": True},
}
"""Ways in which the noise of a machine, or its run, must be refused."""

SIX_SESSIONS = (
    *(Run(name, noise) for name, noise in NOISES.items()),
    *(
        Run(f"{name}: {change}", replace(NOISES[name], **how), bad=True)
        for name in CHANGED
        for change, how in DISTURBED.items()
    ),
    *(
        Run(f"{name}: {change}", NOISES[name], bad=True, **how)
        for name in CHANGED
        for change, how in RUN.items()
    ),
)
KNOWN = SIX_SESSIONS + tuple(
    replace(run, name=f"{run.name}, opened once", sessions=1) for run in SIX_SESSIONS
)


def judged(run: Run, seed: int) -> Iterator[dict[str, Any]]:
    """Which gates refuse a run."""
    refused = refusals(run, seed)
    yield {"bad": run.bad, **{gate: gate in refused for gate in GATES}}


def refusals(run: Run, seed: int) -> list[str]:
    """The names of what refuses a run; none where it is let through."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        make_folder(store.parts)
        machine = Machine(in_class, run.machine, 1000 * seed)
        taken = samples_of(machine, demo_grid(), run.sessions)
        store.add(taken, 1, 0)
        if run.copied:
            store.add(taken[taken["round"] == 3], 3, 0)
        try:
            frame = store.frame()
        except DataError:
            return ["copies"]
    samples = Samples(frame)
    by_cell = samples_by_cell(samples.timed).tolist()
    gates = (
        drift_gate(samples.drift),
        aa_gate(aa_floor(by_cell), SWEEP.stop.relative_half_width),
    )
    return [gate.name for gate in gates if not gate.passed]


def samples_of(machine: Machine, grid: Grid, sessions: int) -> pd.DataFrame:
    """The least samples that the sweep takes, in its order."""
    runner = KnownRunner(machine, ROUNDS * len(grid.measured))
    samples, opened = [], 1
    for number in range(1, ROUNDS + 1):
        if 1 < number <= sessions:
            machine.reopen()
            opened += 1
        session = f"#{opened}"
        cells = round_order(grid.measured, grid.anchor, 0, number)
        for order, cell in enumerate(cells):
            (ran,) = runner.measure(cell, [0])
            samples.append(Sample(cell, number, order, 0, ran, session=session))
    return to_frame(samples)


def misses(rows: pd.DataFrame) -> Iterator[str]:
    """Promises of gates that are not met."""
    refused = rows[list(GATES)].any(axis=1).groupby(rows["bad"]).mean()
    if (healthy := refused.get(False, 0.0)) > MOST_HEALTHY:
        yield f"{healthy:.1%} of healthy refused"
    if (changed := refused.get(True, 1.0)) < LEAST_CHANGED:
        yield f"{changed:.1%} of changed refused"


def show(rows: pd.DataFrame) -> None:
    """One line a run: the share refused by any gate and by each, in %."""
    rows = rows.assign(refused=rows[list(GATES)].any(axis=1))
    for bad, runs in rows.groupby("bad"):
        shares = runs.groupby("world", sort=False)[["refused", *GATES]].mean()
        print(f"\n{'must' if bad else 'must not'} be refused, {len(runs)} runs")
        print((100.0 * shares).round(1).to_string())
