"""Predictions of public runs that are announced and not posted; scored when they are.

    python -m benchmarks.predictions RUNS.csv

A file holds ratios of a step over plain decoding's, with 95 % intervals, of every
setting that its announcement names. `SHA256SUMS` holds the hash of each file. A score
refuses a file that was changed after it was hashed. RUNS.csv has the columns `model`,
`batch`, `width`, `levels`, `topk` and `measured`, the step over plain decoding's.
Each file names the hashes of the estimated tables that it was made with.
"""

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.common import command
from evict_profile.errors import DataError
from evict_profile.served.growth import EXPONENT
from evict_profile.stats import Floats

HOME = Path(__file__).parent
SUMS = "SHA256SUMS"
KEY = ["model", "batch", "width", "levels", "topk"]


def score(runs: Path) -> int:
    """Print the error and coverage of each file, beside the simplest rivals."""
    predicted, measured = known(), pd.read_csv(runs, comment="#")
    if missing := {*KEY, "measured"} - set(measured.columns):
        raise DataError(f"{runs}: lacks the columns {sorted(missing)}; add them")
    for path in predicted:
        both = pd.read_csv(path, comment="#").merge(measured, on=KEY)
        print(f"{path.name}: {len(both)} of its settings were measured")
        if len(both):
            print(scores(both).to_string())
    return 0


def known() -> list[Path]:
    """Files of predictions, each equal to its hash."""
    found = []
    for line in (HOME / SUMS).read_text().splitlines():
        own, name = line.split()
        if _sha256(HOME / name) != own:
            raise DataError(f"{name}: was changed after it was hashed; restore it")
        found.append(HOME / name)
    return found


def scores(both: pd.DataFrame) -> pd.DataFrame:
    """Median and p90 of |ln(predicted / measured)| in per cent, and coverage."""
    measured = both["measured"].to_numpy(float)
    inside = (both["low"] <= measured) & (measured <= both["high"])

    def errors(predicted: Floats) -> Floats:
        off: Floats = 100.0 * np.abs(np.log(predicted / measured))
        return off

    found = {
        "predicted": errors(both["ratio"].to_numpy(float)),
        f"n^{EXPONENT}": errors(both["width"].to_numpy(float) ** EXPONENT),
        "one ratio, in hindsight": errors(np.full(len(both), np.median(measured))),
    }
    rows = {n: (np.median(off), np.quantile(off, 0.9)) for n, off in found.items()}
    table = pd.DataFrame.from_dict(rows, "index", columns=["median", "p90"]).round(1)
    table.loc["predicted", "inside 95 %"] = round(100.0 * float(inside.mean()), 1)
    return table


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@command
def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.predictions", description=__doc__)
    parser.add_argument("runs", type=Path)
    return score(parser.parse_args(arguments).runs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
