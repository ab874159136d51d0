"""Draws the diagrams of boxes and arrows that pages and README show.

Boxes have their own background and arrows a middle grey, so that a drawing is legible
on light and on dark pages.

    python docs/draw_diagrams.py
"""

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

from evict_profile.io import write_text

LINE, FONT = 17, 14
LOOK = (
    "text{font:14px system-ui,sans-serif;text-anchor:middle;fill:#16202b}"
    ".head{font-weight:600}.on{fill:#7d8794;font-size:13px}"
    "rect{fill:#eef2f7;stroke:#7d8794}.main{fill:#d7e6fa;stroke:#2b6cb8}"
    "path{stroke:#7d8794;stroke-width:1.6;fill:none;marker-end:url(#tip)}"
)
TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="6" '
    'markerHeight="6" orient="auto"><path d="M0 0L8 4L0 8z" '
    'style="fill:#7d8794;stroke:none;marker-end:none"/></marker>'
)


class Box(NamedTuple):
    """A box by its centre; its first line is a heading."""

    x: float
    y: float
    lines: tuple[str, ...]
    width: float = 158.0
    look: str = ""

    @property
    def height(self) -> float:
        return 18.0 + LINE * len(self.lines)

    def drawn(self) -> Iterator[str]:
        left, top = self.x - self.width / 2, self.y - self.height / 2
        yield (
            f'<rect x="{left:g}" y="{top:g}" width="{self.width:g}" '
            f'height="{self.height:g}" rx="7" class="{self.look}"/>'
        )
        for number, line in enumerate(self.lines):
            down = top + 9 + FONT + LINE * number
            look = "" if number else ' class="head"'
            yield f'<text x="{self.x:g}" y="{down:g}"{look}>{escape(line)}</text>'

    def right(self, up: float = 0.0) -> str:
        return f"{self.x + self.width / 2:g} {self.y - up:g}"

    def left(self, up: float = 0.0) -> str:
        return f"{self.x - self.width / 2 - 1:g} {self.y - up:g}"


def drawing(
    width: float, height: float, label: str, boxes: list[Box], arrows: list[str]
) -> str:
    """An SVG file of boxes and of arrows, given as path data."""
    drawn = [part for box in boxes for part in box.drawn()]
    paths = [f'<path d="{arrow}"/>' for arrow in arrows]
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" role="img" aria-label="{escape(label)}">'
    )
    style = f"<style>{LOOK}</style><defs>{TIP}</defs>"
    return "\n".join([opening, style, *drawn, *paths, "</svg>", ""])


def pipeline() -> str:
    """From measurements of four kinds to a cost table, and from it to its readers."""
    x1, x2, x3, x4 = 90.0, 290.0, 490.0, 690.0
    sweep = Box(x1, 190, ("sweep", "times forwards", "over n and U"), look="main")
    fit = Box(x2, 190, ("fit", "C(n, U, context,", "batch), 95 % band"), look="main")
    table = Box(x3, 190, ("cost table", "one JSON file,", "versioned"), look="main")
    traces = Box(x1, 38, ("traces", "recorded draft trees"))
    probe = Box(x1, 104, ("probe", "a running server"))
    calibrate = Box(x2, 71, ("calibrate", "acceptance and", "real unions"))
    rows = Box(x1, 290, ("public timings", "of kernels"))
    compose = Box(x2, 290, ("compose", "an estimated table"))
    runtime = Box(x4, 71, ("runtime", "truncates each tree", "in the engine"))
    decide = Box(x4, 190, ("advise, replay", "which draft length,", "what it gains"))
    read = Box(x4, 290, ("report, export", "pages, engine files"))
    chain = [(sweep, fit), (fit, table), (table, decide), (rows, compose)]
    arrows = [f"M{a.right()}L{b.left()}" for a, b in chain]
    arrows += [
        f"M{traces.right()}L{calibrate.left(12)}",
        f"M{probe.right()}L{calibrate.left(-12)}",
        f"M{calibrate.right()}H450Q{x3} 71 {x3} 111V{table.y - table.height / 2 - 1}",
        f"M{compose.right()}H450Q{x3} 290 {x3} 262V{table.y + table.height / 2 + 1}",
        f"M{table.right(14)}L{runtime.left()}",
        f"M{table.right(-14)}L{read.left()}",
    ]
    boxes = [sweep, fit, table, traces, probe, calibrate]
    boxes += [rows, compose, runtime, decide, read]
    return drawing(
        780, 328, "from measurements to a cost table and its readers", boxes, arrows
    )


def main() -> None:
    """Write each drawing beside this file."""
    for name, text in {"pipeline": pipeline()}.items():
        write_text(text, Path(__file__).with_name(f"{name}.svg"))


if __name__ == "__main__":
    main()
