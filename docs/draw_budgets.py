"""Draws docs/budgets.svg, the front of docs/budgets.md, from recordings and a table.

python docs/draw_budgets.py TABLE.json RECORDING.parquet [RECORDING.parquet ...]
"""

import sys
from pathlib import Path

from draw_cost import write_drawing

from evict_profile.budgets.figures import speed_by_divergence
from evict_profile.budgets.study import Ask, study


def main() -> None:
    """Draw the plot as a file of its own."""
    table, *recordings = map(Path, sys.argv[1:])
    front = study(Ask(recordings, table)).whole.front
    write_drawing(speed_by_divergence(front, "front"), "budgets.svg")


if __name__ == "__main__":
    main()
