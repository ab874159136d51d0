"""How far apart are two runs, cell by cell?

Of two sweeps of one plan with different seeds: how well they repeat. Of a sweep under
captured graphs and an eager one: what capturing buys. In all else they must agree.
Reads samples only, so it works on any machine, and for runs whose tables were refused.

    python benchmarks/between_runs.py RUN OTHER

Prints one JSON object: the other's median latency over the first's, of each cell that
both have, and the distance of these ratios from 1, median and p95.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.command import command
from evict_profile.cells import Cell
from evict_profile.errors import StoreError
from evict_profile.fingerprint import fingerprint
from evict_profile.signed import differences
from evict_profile.stats import median_interval
from evict_profile.sweep.store import Store, history

MAY_DIFFER = {"graph_mode", "attention_backend"}
"""Capturing is compared, and an eager forward may take other kernels of attention."""


def ratios(first: Store, second: Store) -> dict[Cell, float]:
    """Median latency of the second over that of the first, by cell.

    Raises:
        StoreError: they are of other models, machines or engines, have no cell in
            common, or one cannot be read.
    """
    refuse_others(first, second)
    before, after = medians(first), medians(second)
    found = {
        cell: after[cell] / before[cell] for cell in sorted(before) if cell in after
    }
    if not found:
        raise StoreError(
            f"{second.folder}: has no cell in common with {first.folder}; give two "
            "runs of one model and grid"
        )
    return found


def refuse_others(first: Store, second: Store) -> None:
    """Refuse runs that differ in what latency is a property of.

    Raises:
        StoreError: naming every fact that differs.
    """
    headers = (second.header(), first.header())
    facts = (fingerprint(header.fingerprint, header.model) for header in headers)
    reasons = differences(
        *({k: v for k, v in known.items() if k not in MAY_DIFFER} for known in facts)
    )
    if reasons:
        raise StoreError(
            f"{second.folder}: cannot be compared with {first.folder} "
            f"({'; '.join(reasons)}); give two runs of one model, machine and engine"
        )


def medians(store: Store) -> dict[Cell, float]:
    """Median latency of each cell that was timed."""
    timed = history(store.frame()).items()
    return {cell: median_interval(times).median for cell, times in timed if times}


@command
def main(words: Sequence[str]) -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("first", type=Path, help="folder of a sweep")
    parser.add_argument("second", type=Path)
    asked = parser.parse_args(words)
    found = ratios(Store(asked.first), Store(asked.second))
    values = np.array(list(found.values()))
    away = np.abs(values - 1.0)
    print(
        json.dumps(
            {
                "cells": len(found),
                "ratio_median": round(float(np.median(values)), 4),
                "difference_median": round(float(np.median(away)), 4),
                "difference_p95": round(float(np.percentile(away, 95)), 4),
                "ratios": {str(cell): round(r, 4) for cell, r in found.items()},
            }
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
