"""How far a layer is from its estimate of the layers near by, and what intervals hold.

    python -m benchmarks.near_layers --from aiconfigurator_core-0.12.0-*.whl \
        --out docs/research/data/near-layers.csv

Every `EVERY`-th usable layer of the newest rows is estimated as if it had no rows of
its size, or none of its cut, or none of few experts. Its rows are compared with the
estimate and its interval of two standard deviations, which layers near by give.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track

from benchmarks.common import command
from evict_profile.report.console import Rows, print_rows
from evict_profile.sources.aiconfigurator import Source, open_source
from evict_profile.sources.experts import ExpertRows
from evict_profile.sources.gates import SLOPE_RANGE, misfit
from evict_profile.sources.near import NearRows, usable_layers
from evict_profile.sources.pairs import pairs
from evict_profile.stats import Floats

EVERY, TWO_SIDED, MOST_TOKENS = 7, 1.96, 1024
FEW = 0.4
"""Share of the largest union below which rows are hidden, as if the cache held them."""
SIZE, CUT, SMALL = "no rows of its size", "no rows of its cut", "no rows of few experts"
MISSING = (SIZE, CUT, SMALL)
console = Console()


@command
def main(arguments: Sequence[str]) -> int:
    """Print errors and coverage; write them by kernel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=None, help="CSV by kernel")
    given = parser.parse_args(arguments)
    rows = pd.DataFrame(judged(open_source(given.source)))
    show(rows)
    if given.out:
        by_kernel(rows).to_csv(given.out, index=False)
    return 0


def judged(source: Source) -> Iterator[dict[str, Any]]:
    """Errors of layers that were left out, each in each way."""
    newest = {}
    for gpu in source.gpus:
        newest.update({(gpu, e): version for e, version in source.engines(gpu, "moe")})
    every = sorted(
        pair
        for pair in pairs(source)
        if pair.ep == 1 and newest[pair.gpu, pair.engine] == pair.version
    )
    for pair in track(every[::EVERY], "layers", console=console):
        layers = usable_layers(source, pair._replace(shape=(0, 0, 0, 0), tp=0))
        own = next((each for each in layers if each.pair == pair), None)
        for missing in MISSING if own else ():
            yield from _judged(own, layers, missing)


def _judged(
    own: ExpertRows, layers: Sequence[ExpertRows], missing: str
) -> Iterator[dict[str, Any]]:
    pair, rows, few = own.pair, own.rows.iloc[:0], own.cold
    if missing == SMALL:
        few = few[few["union"] <= FEW * few["union"].max()]
        rows = own.rows[own.rows["num_tokens"] > few["num_tokens"].max()]
    others = [
        each
        for each in layers
        if each.pair.shape != pair.shape or (missing == CUT and each.pair != pair)
    ]
    near = NearRows(pair, rows, own.peak_gbps, tuple(others))
    few = few[few["num_tokens"] <= MOST_TOKENS]
    if not near.identified or len(few) < 2:
        return
    low, high = SLOPE_RANGE
    if not low <= near.bandwidth_share <= high:
        return
    error = _error(near, few)
    yield {
        "missing": missing,
        "gpu": pair.gpu,
        "engine": pair.engine,
        "dtype": pair.dtype,
        "kernel": pair.kernel,
        "errors": error,
        "growth": error[1:] - error[0],
        "routings": _error(near, own.routings) if missing == SIZE else np.zeros(0),
        "deviation": misfit(near),
    }


def _error(near: NearRows, rows: pd.DataFrame) -> Floats:
    found: Floats = np.log(near.design(rows) @ near.coefficients / rows["us"])
    return np.asarray(found, dtype=np.float64)


def summary(rows: pd.DataFrame) -> dict[str, float]:
    """Of all rows of the layers; errors in per cent."""
    sizes = np.abs(np.concatenate(list(rows["errors"])))
    return {
        "layers": len(rows),
        "median_error": round(100 * float(np.median(sizes)), 1),
        "p90_error": round(100 * float(np.quantile(sizes, 0.9)), 1),
        "deviation": round(100 * float(rows["deviation"].median()), 1),
        "inside": _inside(rows, "errors"),
        "growth_inside": _inside(rows, "growth"),
        "routings_inside": _inside(rows, "routings"),
    }


def _inside(rows: pd.DataFrame, column: str) -> float:
    held = [
        np.abs(errors) <= TWO_SIDED * deviation
        for errors, deviation in zip(rows[column], rows["deviation"], strict=True)
    ]
    every = np.concatenate(held)
    return round(100 * float(every.mean()), 1) if len(every) else float("nan")


def by_kernel(rows: pd.DataFrame) -> pd.DataFrame:
    by = ["missing", "gpu", "engine", "dtype", "kernel"]
    lines = [
        {**dict(zip(by, place, strict=True)), **summary(own)}
        for place, own in rows.groupby(by)
    ]
    return pd.DataFrame(lines)


def show(rows: pd.DataFrame) -> None:
    cells = [
        (missing, *summary(rows[rows["missing"] == missing]).values())
        for missing in MISSING
    ]
    head = ("layer has", "layers", "median %", "p90 %", "deviation %")
    inside = ("inside %", "growth inside %", "routings inside %")
    print_rows(console, Rows((*head, *inside), cells))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
