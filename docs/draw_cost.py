"""Draws docs/cost.svg, the README's plot, from a cost table and its samples.

python docs/draw_cost.py cost_tables/<gpu>/<model>/<engine>/<version>.json
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import command
from evict_profile.fit.fitted import fitted_of_table
from evict_profile.io import write_text
from evict_profile.report.data import View
from evict_profile.report.figures_cost import cost_of_width
from evict_profile.report.render import colours


@command
def main(words: Sequence[str]) -> None:
    """Draw the plot as a file of its own, with both colour modes in it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", type=Path)
    asked = parser.parse_args(words)
    drawing = cost_of_width(View(*fitted_of_table(asked.table)))
    style = f"<style>svg{{font-family:sans-serif}}{colours()}</style>"
    opening = '<svg xmlns="http://www.w3.org/2000/svg" '
    text = drawing.replace("<svg ", opening, 1).replace(">", f">{style}", 1)
    write_text(text + "\n", Path(__file__).with_name("cost.svg"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
