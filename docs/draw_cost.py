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
from evict_profile.report.figures.width import cost_of_width
from evict_profile.report.style import DARK, LIGHT, variables
from evict_profile.report.view import View


@command
def main(words: Sequence[str]) -> None:
    """Draw the plot as a file of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", type=Path)
    asked = parser.parse_args(words)
    drawing = cost_of_width(View(*fitted_of_table(asked.table)))
    write_drawing(drawing, "cost.svg")


def write_drawing(drawing: str, name: str) -> None:
    """Write a drawing beside this script, with both colour modes in it."""
    style = (
        f"<style>svg{{font-family:sans-serif;{variables(LIGHT)}}}"
        f"@media(prefers-color-scheme:dark){{svg{{{variables(DARK)}}}}}</style>"
    )
    opening = '<svg xmlns="http://www.w3.org/2000/svg" '
    text = drawing.replace("<svg ", opening, 1).replace(">", f">{style}", 1)
    write_text(text + "\n", Path(__file__).with_name(name))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
