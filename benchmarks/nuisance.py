"""How much do "which experts" and "how tokens split" matter at a fixed union?

At each (n, U): several draws of routes, each timed several times, in interleaved
order. The spread between draws beyond the spread within a draw is the effect of which
experts run (variance components of a one-way layout); skewed over balanced is the
effect of the split.

    python benchmarks/nuisance.py --model qwen3-30b-a3b
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.common import command
from evict_profile.cells import Cell
from evict_profile.config import ModelSpec, SweepSpec, load_model, load_sweep
from evict_profile.errors import ConfigError
from evict_profile.stats import median_interval
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.session import Session

DRAWS, REPEATS = 6, 5
PLACES = ((4, 0.12), (16, 0.25), (16, 0.5), (32, 0.5), (32, 1.0))
"""Widths, and unions as a share of all experts."""


def spread_between(ratios: np.ndarray) -> dict[str, float]:
    """Relative standard deviations between and within draws of [draws, repeats]."""
    mean = ratios.mean()
    within = ratios.var(axis=1, ddof=1).mean()
    between = ratios.mean(axis=1).var(ddof=1) - within / ratios.shape[1]
    return {
        "which_experts": round(float(np.sqrt(max(between, 0.0)) / mean), 4),
        "one_sample_noise": round(float(np.sqrt(within) / mean), 4),
    }


def places_of(spec: SweepSpec, model: ModelSpec) -> list[tuple[int, int]]:
    """Widths and unions to measure.

    Raises:
        ConfigError: the sweep is too narrow, or the model too small, for them.
    """
    places = [(w, round(share * model.moe.num_experts)) for w, share in PLACES]
    if max(spec.grid.width) < (widest := max(width for width, _ in places)):
        raise ConfigError(
            f"--sweep {spec.name}: has widths up to {max(spec.grid.width)}, and "
            f"{widest} is needed; give a wider one, such as repeat"
        )
    for width, union in places:
        least, most = model.smallest_union(), model.largest_union(width)
        if not least <= union <= most:
            raise ConfigError(
                f"--model {model.name}: {width} tokens wake {least} to {most} experts, "
                f"and {union} are needed; give a model of more experts, such as "
                "qwen3-30b-a3b"
            )
    return places


@command
def main(words: Sequence[str]) -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-30b-a3b")
    parser.add_argument("--sweep", default="repeat")
    asked = parser.parse_args(words)
    spec, model = load_sweep(asked.sweep), load_model(asked.model)
    grid = make_grid(spec, model)
    places = places_of(spec, model)
    cells = [
        Cell("layers", width, union, min(spec.grid.context), 1, split)
        for width, union in places
        for split in ("balanced", "skewed")
    ]
    ratios = {cell: np.zeros((DRAWS, REPEATS)) for cell in cells}
    visits = [(c, d, r) for r in range(REPEATS) for c in cells for d in range(DRAWS)]
    random.Random(0).shuffle(visits)
    with (
        tempfile.TemporaryDirectory() as folder,
        Session(spec, model, grid, Path(folder) / "log") as session,
    ):
        for cell, draw, repeat in visits:
            answer = session.runner.measure(cell, [draw])[0]
            reference = answer["reference_us"]
            # A GPU's clock needs no reference, and has NaN there.
            scale = reference if reference > 0.0 else 1.0
            ratios[cell][draw, repeat] = answer["clock_us"] / scale
    found = []
    for width, union in places:
        even, skewed = (
            ratios[c] for c in cells if (c.width, c.union) == (width, union)
        )
        split = median_interval((skewed / even).ravel())
        found.append(
            {
                "n": width,
                "U": union,
                "balanced": spread_between(even),
                "skewed": spread_between(skewed),
                "skewed_over_balanced": round(split.median, 3),
                "interval": [round(split.low, 3), round(split.high, 3)],
            }
        )
    print(json.dumps({"model": model.name, "draws": DRAWS, "cells": found}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
