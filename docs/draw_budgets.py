"""Draws docs/budgets.svg, the front of docs/budgets.md, from recordings and a table.

python docs/draw_budgets.py TABLE.json RECORDING.parquet [RECORDING.parquet ...]
"""

import sys
from dataclasses import replace
from pathlib import Path

from draw_cost import write_drawing

from evict_profile.budgets.figures import speed_by_divergence
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

DRAWN = (NONE, MASS, STATIC, PATH, SQRT_PATH, SQRT_TOP_K, ORACLE)
"""Rules that can be told apart in one plot; the page that `budget` writes has all."""


def main() -> None:
    """Draw the plot as a file of its own."""
    table, *recordings = map(Path, sys.argv[1:])
    front = study(Ask(recordings, table)).whole.front
    points = tuple(each for each in front.points if each.setting.rule in DRAWN)
    drawing = speed_by_divergence(replace(front, points=points), "front")
    write_drawing(drawing, "budgets.svg")


if __name__ == "__main__":
    main()
