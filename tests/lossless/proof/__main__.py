"""Enumerate every combination, print its counterexample and write the page's table.

    python -m tests.lossless.proof

Two minutes. `git diff` then shows whether a verdict or a bias has changed.
"""

import csv
from pathlib import Path

from tests.lossless.proof.audit import COMBINATIONS, audit, summary

TABLE = Path(__file__).parents[3] / "docs/research/data/lossless-combinations.csv"

if __name__ == "__main__":
    audits = list(map(audit, COMBINATIONS))
    for each in audits:
        print(f"{each.combination}: {each.largest or 'exact in every trial'}")
    lines = [(name, f"{float(tv):.3f}" if tv else "0") for name, tv in summary(audits)]
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([("combination", "max TV"), *lines])
