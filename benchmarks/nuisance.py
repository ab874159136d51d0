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
from collections.abc import Sequence

import numpy as np

from benchmarks.common import command, open_session
from evict_profile.cells import Cell
from evict_profile.config import ModelSpec, SweepSpec, load_model, load_sweep
from evict_profile.errors import ConfigError
from evict_profile.stats import median_interval
from evict_profile.sweep.session import OpenRunner

DRAWS, REPEATS = 6, 5
POINTS = ((4, 0.12), (16, 0.25), (16, 0.5), (32, 0.5), (32, 1.0))
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


def points_of(spec: SweepSpec, model: ModelSpec) -> list[tuple[int, int]]:
    """Widths and unions to measure."""
    points = [(w, round(share * model.moe.num_experts)) for w, share in POINTS]
    if max(spec.grid.width) < (widest := max(width for width, _ in points)):
        raise ConfigError(
            f"--sweep {spec.name}: has widths up to {max(spec.grid.width)}, and "
            f"{widest} is needed; give a wider one, such as repeat"
        )
    for width, union in points:
        least, most = model.smallest_union(), model.largest_union(width)
        if not least <= union <= most:
            raise ConfigError(
                f"--model {model.name}: {width} tokens activate {least} to {most} "
                f"experts, and {union} are needed; give a model of more experts, such "
                "as qwen3-30b-a3b"
            )
    return points


def measure(session: OpenRunner, cells: Sequence[Cell]) -> dict[Cell, np.ndarray]:
    """Clock over reference of each draw and repeat, in shuffled order."""
    ratios = {cell: np.zeros((DRAWS, REPEATS)) for cell in cells}
    visits = [(c, d, r) for r in range(REPEATS) for c in cells for d in range(DRAWS)]
    random.Random(0).shuffle(visits)
    for cell, draw, repeat in visits:
        answer = session.runner.measure(cell, [draw])[0]
        reference = answer["reference_us"]
        # A GPU's clock needs no reference, and has NaN there.
        scale = reference if reference > 0.0 else 1.0
        ratios[cell][draw, repeat] = answer["clock_us"] / scale
    return ratios


@command
def main(words: Sequence[str]) -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-30b-a3b")
    parser.add_argument("--sweep", default="repeat")
    asked = parser.parse_args(words)
    spec, model = load_sweep(asked.sweep), load_model(asked.model)
    context = min(spec.grid.context)
    pairs = [
        tuple(Cell("layers", n, u, context, 1, s) for s in ("balanced", "skewed"))
        for n, u in points_of(spec, model)
    ]
    with open_session(spec, model) as session:
        ratios = measure(session, [cell for pair in pairs for cell in pair])
    found = []
    for even, skewed in pairs:
        split = median_interval((ratios[skewed] / ratios[even]).ravel())
        found.append(
            {
                "n": even.width,
                "U": even.union,
                "balanced": spread_between(ratios[even]),
                "skewed": spread_between(ratios[skewed]),
                "skewed_over_balanced": round(split.median, 3),
                "interval": [round(split.low, 3), round(split.high, 3)],
            }
        )
    print(json.dumps({"model": model.name, "draws": DRAWS, "cells": found}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
