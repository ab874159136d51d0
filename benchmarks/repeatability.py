"""How well do two sweeps of one plan agree, and what does each part of ours buy?

Two independent sweeps (own process, own seed, own choice of experts) are compared
cell by cell, in two orders: interleaved rounds, as our engine measures, and
sequential, each cell's samples in one go, as start-up profilers do. Both are read
with four estimators, from a plain mean of wall times to ours. Physics: a shared
machine drifts over seconds to minutes; interleaving spreads the drift over all cells,
the paired reference divides it out, the median ignores the rest.

    python benchmarks/repeatability.py --model qwen3-30b-a3b --sweep repeat
    python benchmarks/repeatability.py --model tiny --sweep repeat

Prints one JSON object: relative difference of a cell's two values, median and p95.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.command import command, count
from evict_profile.cells import CELL_FIELDS, Cell
from evict_profile.config import ModelSpec, SweepSpec, load_model, load_sweep
from evict_profile.sweep.grid import Grid, make_grid
from evict_profile.sweep.plan import round_order, sample_seed
from evict_profile.sweep.session import Session

Estimator = Callable[[pd.DataFrame], float]

ESTIMATORS: dict[str, Estimator] = {
    "mean wall time": lambda f: float(f["wall_us"].mean()),
    "median wall time": lambda f: float(f["wall_us"].median()),
    "median clock": lambda f: float(f["clock_us"].median()),
    "median clock over reference": lambda f: float(
        # A GPU's clock needs no reference, and has NaN there.
        (f["clock_us"] / f["reference_us"].fillna(1.0)).median()
    ),
}


def visits(grid: Grid, order: str, seed: int, samples: int) -> list[tuple[int, Cell]]:
    """(repeat, cell) in the order to measure them."""
    if order == "sequential":
        return [(i, cell) for cell in sorted(grid.cells) for i in range(samples)]
    return [
        (number, cell)
        for number in range(samples)
        for cell in round_order(grid.cells, grid.anchor, seed, number)
    ]


def sweep(spec: SweepSpec, model: ModelSpec, order: str, seed: int) -> pd.DataFrame:
    """One sweep in a process of its own; one row a sample."""
    grid, rows = make_grid(spec, model), []
    with (
        tempfile.TemporaryDirectory() as folder,
        Session(spec, model, grid, Path(folder) / "log") as session,
    ):
        for number, cell in visits(grid, order, seed, spec.stop.min_samples):
            seeds = [sample_seed(seed, number, cell, 0)]
            answer = session.runner.measure(cell, seeds)[0]
            rows.append({**vars(cell), **answer})
    return pd.DataFrame(rows)


def differences(first: pd.DataFrame, second: pd.DataFrame) -> dict[str, object]:
    """Relative difference of each estimator over cells."""
    found = {}
    for name, estimate in ESTIMATORS.items():
        values = [
            pd.Series(
                {key: estimate(group) for key, group in f.groupby(list(CELL_FIELDS))}
            )
            for f in (first, second)
        ]
        change = (values[1] / values[0] - 1.0).abs()
        found[name] = {
            "median": round(float(change.median()), 4),
            "p95": round(float(np.percentile(change, 95)), 4),
            "cells": len(change),
        }
    return found


@command
def main(words: Sequence[str]) -> None:
    """Run the sweeps in turns and print the differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-30b-a3b")
    parser.add_argument("--sweep", default="repeat")
    parser.add_argument("--pairs", type=count, default=1)
    asked = parser.parse_args(words)
    spec, model = load_sweep(asked.sweep), load_model(asked.model)
    result: dict[str, list[object]] = {"interleaved": [], "sequential": []}
    for pair in range(asked.pairs):
        frames = {
            (order, half): sweep(spec, model, order, seed=2 * pair + half)
            for half in range(2)
            for order in result
        }
        for order in result:
            result[order].append(differences(frames[order, 0], frames[order, 1]))
    print(json.dumps({"model": model.name, "samples": spec.stop.min_samples, **result}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
