"""What does a sweep lose when it is killed? Asked with kill -9, at random moments.

A sweep runs in a process of its own, is killed with SIGKILL while it measures, and is
started again with the same command, until it has been killed as often as asked. Then
it may finish, and its samples are compared with those of a sweep that nobody touched.
A sweep that finishes before its kills are spent is compared, and another one begun.

With the model "scripted" latency is a formula of cell and seed, so the two must be
equal to the last digit. With a real model times differ, so the plan must be equal:
round, order, cell and seed of every sample.

    python benchmarks/kill_resume.py
    python benchmarks/kill_resume.py --kills 100 --seed 1
    python benchmarks/kill_resume.py --model tiny

Prints one JSON object. `rounds_lost_max` counts rounds that a kill took samples from;
`equal` says that all sweeps ended with the samples of the untouched one.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd
from rich.console import Console

from benchmarks.common import command, count
from evict_profile.cells import CELL_FIELDS
from evict_profile.config import (
    GridSpec,
    ModelSpec,
    StopSpec,
    SweepSpec,
    load_model,
    load_sweep,
)
from evict_profile.records import replace
from evict_profile.sweep.engine import Limits, run_sweep
from evict_profile.sweep.store import Store

ROOT = Path(__file__).resolve().parents[1]
SCRIPTED = "scripted"
SCRIPTED_SLEEP_S = 0.005
OF_THE_MOMENT = ["at_unix", "wall_us", "events"]
PLANNED = ["round", "order", "seed", *CELL_FIELDS]
POLL_S, MOST_WAIT_S = 0.005, 0.06
"""The wait lets a kill fall between samples too: into the writing of a part."""
KILLS_A_SWEEP = 8
"""Kills come so often that a sweep meets about as many before it ends."""


@dataclass(frozen=True)
class Subject:
    """The sweep that is killed."""

    name: str

    @property
    def model(self) -> ModelSpec:
        """The model swept; the scripted runner takes the shape of `tiny`."""
        return load_model("tiny" if self.name == SCRIPTED else self.name)

    def require_model(self) -> None:
        """Refuse a name of no model here, and not in the process that is killed.

        Raises:
            ConfigError: naming what there is.
        """
        _ = self.model

    @property
    def spec(self) -> SweepSpec:
        """Small; with a real model, of a fixed number of samples a cell."""
        if self.name != SCRIPTED:
            runner = str(ROOT / "benchmarks" / "journaled_torch.py")
            fixed = StopSpec(min_samples=6, max_samples=6)
            return replace(load_sweep("tiny"), runner=runner, stop=fixed)
        runner = str(ROOT / "tests" / "runners" / "scripted.py")
        stop = StopSpec(relative_half_width=0.01, min_samples=6, max_samples=12)
        axes = {"width": (1, 2, 4, 8), "context": (64,), "batch": (1, 2)}
        grid = GridSpec(union=4, max_tokens=8, **axes)
        return SweepSpec(name=SCRIPTED, grid=grid, runner=runner, stop=stop, seed=5)

    def comparable(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The columns that must not depend on when and how often it was killed."""
        if self.name == SCRIPTED:
            return frame.drop(columns=OF_THE_MOMENT)
        return frame[PLANNED]

    def sweep(self, folder: Path) -> bool:
        """Start or continue the sweep in this process."""
        quiet = Console(quiet=True)
        return run_sweep(
            self.spec, self.model, Store(folder), lambda *_: _asked, Limits(), quiet
        )

    def start(self, folder: Path, journal: Path) -> "subprocess.Popen[bytes]":
        """Start or continue the sweep in a process of its own."""
        command = [sys.executable, __file__, "--model", self.name, "--drive", folder]
        scripted = {"SCRIPTED_SLEEP": str(SCRIPTED_SLEEP_S)}
        places = {"PYTHONPATH": str(ROOT), "RUNNER_JOURNAL": str(journal)}
        return subprocess.Popen(command, env={**os.environ, **scripted, **places})


@dataclass(frozen=True)
class Untouched:
    """The sweep that nobody killed."""

    frame: pd.DataFrame

    @cached_property
    def round_of_seed(self) -> dict[int, int]:
        """The round that a sample belongs to, by its seed."""
        measured = self.frame[self.frame["round"] > 0]
        return dict(zip(measured["seed"], measured["round"], strict=True))


@dataclass(frozen=True)
class Kill:
    """What one kill cost.

    Attributes:
        at_round: the last round that was stored.
        rounds_lost, samples_lost: measured in this life, and not on the disk.
        parts_changed: files of earlier rounds that are gone or differ.
    """

    at_round: int
    rounds_lost: int
    samples_lost: int
    parts_changed: int


@dataclass(frozen=True)
class Series:
    """One sweep with its kills, and whether it ended as the untouched one."""

    kills: tuple[Kill, ...]
    equal: bool


def untouched(subject: Subject, folder: Path) -> Untouched:
    """Run the sweep to its end, in a process of its own as the others."""
    life = subject.start(folder, folder.with_suffix(".journal"))
    if life.wait():
        raise SystemExit(f"the untouched sweep failed; see {folder}")
    return Untouched(Store(folder).frame())


def kill_series(
    subject: Subject, whole: Untouched, folder: Path, kills: int, rng: random.Random
) -> Series:
    """Kill one sweep up to `kills` times, let it finish, and compare."""
    most_samples = 2.0 * len(whole.frame) / KILLS_A_SWEEP
    done: list[Kill] = []
    parts: dict[str, str] = {}
    while len(done) < kills:
        journal = folder.with_suffix(f".journal{len(done)}")
        life = subject.start(folder, journal)
        samples, then_s = rng.uniform(0.0, most_samples), rng.uniform(0.0, MOST_WAIT_S)
        if not _kill_while_measuring(life, journal, samples, then_s):
            break
        left = _digests(folder)
        changed = sum(left.get(name) != digest for name, digest in parts.items())
        done.append(_cost(whole, folder, journal, changed))
        parts = left
    subject.start(folder, folder.with_suffix(".journal")).wait()
    found = subject.comparable(Store(folder).frame())
    equal = found.equals(subject.comparable(whole.frame))
    left = _digests(folder)
    return Series(tuple(done), equal and all(left[n] == d for n, d in parts.items()))


def summary(subject: Subject, whole: Untouched, series: Sequence[Series]) -> str:
    """All that happened, as one JSON object."""
    kills = [kill for one in series for kill in one.kills]
    spec = subject.spec
    frame = whole.frame
    return json.dumps(
        {
            "model": subject.name,
            "plan": f"{spec.plan}, sweep {spec.name}, seed {spec.seed}",
            "cells": len(
                frame[frame["round"] > 0][list(CELL_FIELDS)].drop_duplicates()
            ),
            "rounds": int(frame["round"].max()),
            "samples": int((frame["round"] > 0).sum()),
            "sweeps": len(series),
            "kills": len(kills),
            "rounds_killed_in": sorted({kill.at_round + 1 for kill in kills}),
            "rounds_lost_max": max(kill.rounds_lost for kill in kills),
            "samples_lost_max": max(kill.samples_lost for kill in kills),
            "stored_parts_changed": sum(kill.parts_changed for kill in kills),
            "compared": "all but times" if subject.name == SCRIPTED else "the plan",
            "equal": all(one.equal for one in series),
        }
    )


def _asked(*_: object) -> None:
    raise AssertionError("a grid plan asks no surrogate")


def _kill_while_measuring(
    life: "subprocess.Popen[bytes]", journal: Path, samples: float, then_s: float
) -> bool:
    """Kill -9 after so many samples and a wait; False when it had ended before."""
    while life.poll() is None:
        if journal.exists() and len(journal.read_text().split()) > samples:
            time.sleep(then_s)
            life.kill()
            return life.wait() < 0
        time.sleep(POLL_S)
    if life.returncode:
        raise SystemExit(f"the sweep failed with status {life.returncode}")
    return False


def _digests(folder: Path) -> dict[str, str]:
    parts = (folder / "parts").glob("*.parquet")
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in parts}


def _cost(whole: Untouched, folder: Path, journal: Path, changed: int) -> Kill:
    stored = Store(folder).frame()
    known = whole.round_of_seed
    # Samples of the union test and the scaling test belong to no round.
    measured = {int(line) for line in journal.read_text().split()} & known.keys()
    lost = measured - set(stored["seed"])
    rounds = {known[seed] for seed in lost}
    last = int(stored["round"].max()) if len(stored) else 0
    return Kill(last, len(rounds), len(lost), changed)


def run(subject: Subject, kills: int, seed: int, folder: Path) -> str:
    """Kill sweeps until all kills are spent."""
    rng, series = random.Random(seed), list[Series]()
    whole = untouched(subject, folder / "untouched")
    while (left := kills - sum(len(one.kills) for one in series)) > 0:
        own = folder / f"killed{len(series)}"
        series.append(kill_series(subject, whole, own, left, rng))
    return summary(subject, whole, series)


@command
def main(words: Sequence[str]) -> None:
    """Run, or be the process that is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=SCRIPTED)
    parser.add_argument("--kills", type=count, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    subject = Subject(asked.model)
    subject.require_model()
    if asked.drive:
        subject.sweep(asked.drive)
        return
    with tempfile.TemporaryDirectory() as folder:
        print(run(subject, asked.kills, asked.seed, Path(folder)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
