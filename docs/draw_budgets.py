"""Draws docs/budgets.svg, the front of docs/budgets.md, from recordings and a table.

python docs/draw_budgets.py TABLE.json RECORDING.parquet [RECORDING.parquet ...]
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from draw_cost import write_drawing

from benchmarks.command import command
from evict_profile.budgets.settings import (
    MASS,
    NONE,
    ORACLE,
    PATH,
    SQRT_PATH,
    SQRT_TOP_K,
    STATIC,
)
from evict_profile.budgets.study import Ask, study
from evict_profile.report.figures.budgets import speed_by_divergence

DRAWN = (NONE, MASS, STATIC, PATH, SQRT_PATH, SQRT_TOP_K, ORACLE)
"""Rules that can be told apart in one plot; the page that `budget` writes has all."""


@command
def main(words: Sequence[str]) -> None:
    """Draw the plot as a file of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("recordings", type=Path, nargs="+")
    asked = parser.parse_args(words)
    front = study(Ask(asked.recordings, asked.table)).whole.front
    points = tuple(each for each in front.points if each.setting.rule in DRAWN)
    drawing = speed_by_divergence(replace(front, points=points), "front")
    write_drawing(drawing, "budgets.svg")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
