"""Does a cost scaled from 2 layers hold for 4?

One runner holds 4 layers and measures, in turns and on the same routes, the first 2
and all 4, for every forced cell of the sweep. Printed: scaled over measured, less one.

    python benchmarks/layer_scaling.py --model qwen3-30b-a3b --sweep repeat
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.command import command
from evict_profile.config import load_model, load_sweep
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.plan import round_order, sample_seed
from evict_profile.sweep.session import Session

SMALL, LARGE = 2, 4


@command
def main(words: Sequence[str]) -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-30b-a3b")
    parser.add_argument("--sweep", default="repeat")
    asked = parser.parse_args(words)
    spec, model = (
        replace(load_sweep(asked.sweep), layers=LARGE),
        load_model(asked.model),
    )
    grid = make_grid(spec, model)
    cells = [c for c in grid.cells if c.union > 0]
    ratios: dict[str, list[float]] = {str(cell): [] for cell in cells}
    with (
        tempfile.TemporaryDirectory() as folder,
        Session(spec, model, grid, Path(folder) / "log") as session,
    ):
        for number in range(spec.stop.min_samples):
            for cell in round_order(cells, grid.anchor, spec.seed, number):
                seeds = [sample_seed(spec.seed, number, cell, 0)]
                small, large = (
                    session.runner.measure(cell, seeds, layers)[0]["clock_us"]
                    for layers in (SMALL, LARGE)
                )
                ratios[str(cell)].append(small * LARGE / SMALL / large - 1.0)
    errors = {cell: round(float(np.median(v)), 4) for cell, v in ratios.items()}
    values = np.array(list(errors.values()))
    low, middle, high = np.percentile(values, [5, 50, 95]).round(4).tolist()
    print(
        json.dumps(
            {
                "model": model.name,
                "scaled": f"{SMALL} layers to {LARGE}",
                "error_median": middle,
                "error_p5_p95": [low, high],
                "absolute_error_median": round(float(np.median(np.abs(values))), 4),
                "cells": errors,
            }
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
