"""Runs that gates must refuse, and runs of healthy machines that they must not.

Judged are the gates that need samples alone: copies, drift, A/A floor.
They are drawn round by round in the sweep's order, without the engine.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from benchmarks.known_truths.sweeps import SWEEP, KnownRunner, demo_grid
from benchmarks.known_truths.worlds import Disturbance, Machine, in_class
from evict_profile.cells import Sample, to_frame
from evict_profile.errors import StoreError
from evict_profile.fit.gates import aa_gate, drift_gate
from evict_profile.fit.provenance import aa_floor
from evict_profile.io import make_folder
from evict_profile.sweep.grid import Grid
from evict_profile.sweep.latency import Samples
from evict_profile.sweep.plan import round_order
from evict_profile.sweep.store import Store, history

GATES = ("copies", "drift", "A/A floor")
ROUNDS = SWEEP.stop.min_samples

Parts = Callable[[Grid], list[Grid]]
"""Cuts the cells of a sweep into what is measured on its own."""


def whole(grid: Grid) -> list[Grid]:
    """All cells in one sweep."""
    return [grid]


def shards(grid: Grid) -> list[Grid]:
    """Two shards, as the command makes them."""
    return [grid.shard(index, 2) for index in range(2)]


def batches(grid: Grid) -> list[Grid]:
    """Each batch on a day of its own, the anchor with each."""
    return [
        replace(
            grid,
            cells=tuple(c for c in grid.cells if c.batch == batch or c == grid.anchor),
            infeasible=(),
            between=tuple(c for c in grid.between if c.batch == batch),
            validation=tuple(c for c in grid.validation if c.batch == batch),
        )
        for batch in sorted({cell.batch for cell in grid.cells})
    ]


@dataclass(frozen=True)
class Run:
    """A way to run a sweep.

    Attributes:
        machine: how it is disturbed; by `later` while the second part is measured.
        bad: whether gates must refuse it.
        copied: whether the samples of a round are there twice.
        sessions: of the runner, in each part.
    """

    name: str
    machine: Disturbance
    bad: bool = False
    parts: Parts = whole
    later: Disturbance | None = None
    copied: bool = False
    sessions: int = SWEEP.sessions


def _slower(machine: Disturbance, by: float) -> Disturbance:
    return replace(machine, slow=(by, 0.0, 2.0))


MIDDLE = (0.2, 1 / 3, 2 / 3)
"""By how much, and when: the middle third."""

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
NOISY = ("1 %", "3 %", "8 %")
HEALTHY = (
    *(Run(name, machine) for name, machine in NOISES.items()),
    *(
        Run(f"{name}, two shards", NOISES[name], parts=shards)
        for name in (*NOISY, "heavy tails", "the same, with reference")
    ),
)


def _changed(name: str, noise: Disturbance) -> tuple[Run, ...]:
    """Runs of a machine of this noise that changed, or of a runner that repeats."""
    return (
        Run(f"{name}: drift of 5 %", replace(noise, drift=0.05), True),
        Run(f"{name}: drift of 7 %", replace(noise, drift=0.07), True),
        Run(f"{name}: step of 5 %", replace(noise, slow=(0.05, 0.5, 2.0)), True),
        Run(f"{name}: middle third 20 % slower", replace(noise, slow=MIDDLE), True),
        Run(
            f"{name}: second shard 10 % slower",
            noise,
            True,
            shards,
            _slower(noise, 0.1),
        ),
        Run(
            f"{name}: batch 4 another day, 15 % slower",
            noise,
            True,
            batches,
            _slower(noise, 0.15),
        ),
        Run(f"{name}: a round copied", noise, True, copied=True),
        Run(f"{name}: first answers repeated", replace(noise, repeats=True), True),
    )


ALL = (*HEALTHY, *(run for name in NOISY for run in _changed(name, NOISES[name])))
RUNS = (
    *ALL,
    *(replace(run, name=f"{run.name}, opened once", sessions=1) for run in ALL),
)


def refusals(run: Run, seed: int) -> list[str]:
    """The names of what refuses a run; none where it is let through."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        make_folder(store.parts)
        parts = run.parts(demo_grid())
        for index, grid in enumerate(parts):
            told = run.later if index and run.later else run.machine
            machine = Machine(in_class, told, 1000 * seed + index)
            taken = samples_of(machine, grid, f"{index + 1}/{len(parts)}", run.sessions)
            store.add(taken, 1, index)
        if run.copied:
            store.add(taken[taken["round"] == 3], 3, 0)
        try:
            frame = store.frame()
        except StoreError:
            return ["copies"]
    gates = (
        drift_gate(Samples(frame).drift),
        aa_gate(aa_floor(history(frame)), SWEEP.stop.relative_half_width),
    )
    return [gate.name for gate in gates if not gate.passed]


def samples_of(machine: Machine, grid: Grid, shard: str, sessions: int) -> pd.DataFrame:
    """The least samples that the demo's sweep takes, in its order."""
    runner = KnownRunner(machine, ROUNDS * len(grid.measured))
    samples, of_shard = [], 1
    for number in range(1, ROUNDS + 1):
        if 1 < number <= sessions:
            machine.reopen()
            of_shard += 1
        session = f"{shard} #{of_shard}"
        for order, cell in enumerate(
            round_order(grid.measured, grid.anchor, 0, number)
        ):
            (answer,) = runner.measure(cell, [0])
            samples.append(Sample(cell, number, order, 0, session=session, **answer))
    return to_frame(samples)
