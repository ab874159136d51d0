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
from collections.abc import Sequence
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

LATENCY = "median latency"
ESTIMATORS = {
    "mean wall time": ("wall_us", "mean"),
    "median wall time": ("wall_us", "median"),
    "median clock": ("clock_us", "median"),
    "median clock over reference": ("paired", "median"),
    LATENCY: ("latency_us", "median"),
}
"""Column and statistic of each."""


@command
def main(arguments: Sequence[str]) -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("first", type=Path, help="folder of a sweep")
    parser.add_argument("second", type=Path)
    options = parser.parse_args(arguments)
    first, second = Store(options.first), Store(options.second)
    check_comparable(first, second)
    ratios = ratios_of(first, second)
    away = (ratios - 1.0).abs()
    summary = pd.DataFrame({"median": away.median(), "p95": away.quantile(0.95)})
    differences_of = summary.round(4).assign(cells=len(away)).to_dict("index")
    cells = zip(ratios.index, ratios[LATENCY].round(4), strict=True)
    by_cell = {str(Cell(*cell)): ratio for cell, ratio in cells}
    print(json.dumps({"difference": differences_of, "ratios": by_cell}))


def ratios_of(first: Store, second: Store) -> pd.DataFrame:
    """The second run's value over the first's: a row a common cell, by estimator."""
    ratios = (values_of(second) / values_of(first)).dropna()
    if ratios.empty:
        raise StoreError(
            f"{second.folder}: has no cell in common with {first.folder}; give two "
            "runs of one model and grid"
        )
    return ratios


def values_of(store: Store) -> pd.DataFrame:
    """What each estimator says of each cell that was timed."""
    timed = with_latency(store.frame())
    paired = timed["clock_us"] / timed["reference_us"].fillna(1.0)
    cells = timed.assign(paired=paired).groupby(list(CELL_FIELDS))
    return cells.agg(**ESTIMATORS)


def check_comparable(first: Store, second: Store) -> None:
    """Refuse runs that differ in what latency is a property of."""
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
