"""How far apart are two sweeps of one plan, cell by cell?

    python benchmarks/repeatability.py RUN OTHER

Of two sweeps with different seeds (own process, own choice of experts): how well they
repeat. Of a sweep under captured graphs and an eager one: what capturing buys. In all
else they must agree. Only samples are read, so it works on any machine, and for runs
whose tables were refused.

The same samples are read by five estimators, from a plain mean of wall times on. A
shared machine drifts over seconds to minutes: the paired reference divides that out,
and the median ignores the rest. `latency` is what a table is fitted to: in microseconds
at the sweep's own median reference. A GPU's clock needs no reference.

Prints one JSON object: of each estimator the relative difference of a cell's two
values, median and p95, and the other's latency over the first's of each cell.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from benchmarks.common import command
from evict_profile.cells import CELL_FIELDS, Cell
from evict_profile.errors import StoreError
from evict_profile.records import differences
from evict_profile.sweep.session import fingerprint
from evict_profile.sweep.store import Store, with_latency

MAY_DIFFER = {"graph_mode", "attention_backend"}
"""Capturing is compared, and an eager forward may take other kernels of attention."""

Estimator = Callable[[pd.DataFrame], float]
LATENCY = "median latency"
ESTIMATORS: dict[str, Estimator] = {
    "mean wall time": lambda f: float(f["wall_us"].mean()),
    "median wall time": lambda f: float(f["wall_us"].median()),
    "median clock": lambda f: float(f["clock_us"].median()),
    "median clock over reference": lambda f: float(
        (f["clock_us"] / f["reference_us"].fillna(1.0)).median()
    ),
    LATENCY: lambda f: float(f["latency_us"].median()),
}


@command
def main(arguments: Sequence[str]) -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("first", type=Path, help="folder of a sweep")
    parser.add_argument("second", type=Path)
    options = parser.parse_args(arguments)
    first, second = Store(options.first), Store(options.second)
    check_comparable(first, second)
    ratios = {
        name: ratios_of(first, second, estimate)
        for name, estimate in ESTIMATORS.items()
    }
    differences_of = {name: difference(values) for name, values in ratios.items()}
    cells = {str(cell): round(value, 4) for cell, value in ratios[LATENCY].items()}
    print(json.dumps({"difference": differences_of, "ratios": cells}))


def ratios_of(first: Store, second: Store, estimate: Estimator) -> dict[Cell, float]:
    """The second run's value over the first's, of each cell that both have.

    Raises:
        StoreError: they have no cell in common, or one cannot be read.
    """
    before, after = (values_of(store, estimate) for store in (first, second))
    common = {
        cell: after[cell] / before[cell] for cell in sorted(before) if cell in after
    }
    if not common:
        raise StoreError(
            f"{second.folder}: has no cell in common with {first.folder}; give two "
            "runs of one model and grid"
        )
    return common


def values_of(store: Store, estimate: Estimator) -> dict[Cell, float]:
    """A value of each cell that was timed."""
    timed = with_latency(store.frame())
    return {
        Cell(*cell): estimate(group) for cell, group in timed.groupby(list(CELL_FIELDS))
    }


def difference(ratios: dict[Cell, float]) -> dict[str, float]:
    """How far ratios are from 1."""
    away = (pd.Series(list(ratios.values())) - 1.0).abs()
    return {
        "median": round(float(away.median()), 4),
        "p95": round(float(away.quantile(0.95)), 4),
        "cells": len(away),
    }


def check_comparable(first: Store, second: Store) -> None:
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
