"""Draws the diagrams of boxes and arrows in README and these pages.

Boxes have their own background and arrows a middle grey, so that a drawing is legible
on light and on dark pages.

    python docs/draw_diagrams.py
"""

from collections.abc import Iterator
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from evict_profile.io import write_text
from tests.test_layers import LAYERS, ROOT

LINE, FONT = 17, 14
LOOK = (
    "text{font:14px system-ui,sans-serif;text-anchor:middle;fill:#16202b}"
    ".head{font-weight:600}.on{fill:#7d8794;font-size:13px}"
    "rect{fill:#eef2f7;stroke:#7d8794}.main{fill:#d7e6fa;stroke:#2b6cb8}"
    "path{stroke:#7d8794;stroke-width:1.6;fill:none;marker-end:url(#tip)}"
    ".life{stroke-dasharray:3 4;marker-end:none}"
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
            yield word(self.x, down, line, "" if number else "head")

    def right(self, up: float = 0.0) -> str:
        return f"{self.x + self.width / 2:g} {self.y - up:g}"

    def left(self, up: float = 0.0) -> str:
        return f"{self.x - self.width / 2 - 1:g} {self.y - up:g}"


def word(x: float, y: float, text: str, look: str = "on") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{look}">{escape(text)}</text>'


def arrow(path: str, look: str = "") -> str:
    return f'<path d="{path}" class="{look}"/>'


def chain(*boxes: Box) -> list[str]:
    return [arrow(f"M{a.right()}L{b.left()}") for a, b in pairwise(boxes)]


def drawing(
    width: float, height: float, label: str, boxes: list[Box], more: list[str]
) -> str:
    """An SVG file of boxes and what else is drawn, such as arrows."""
    drawn = [part for box in boxes for part in box.drawn()]
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" role="img" aria-label="{escape(label)}">'
    )
    style = f"<style>{LOOK}</style><defs>{TIP}</defs>"
    return "\n".join([opening, style, *drawn, *more, "</svg>", ""])


def pipeline() -> str:
    """From measurements of four kinds to a cost table, and from it to its readers."""
    x1, x2, x3, x4 = 90.0, 290.0, 490.0, 690.0
    sweep = Box(x1, 190, ("sweep", "times forwards", "over n and U"), look="main")
    fit = Box(x2, 190, ("fit", "C(n, U, context,", "batch), 95 % band"), look="main")
    table = Box(x3, 190, ("cost table", "one JSON file,", "versioned"), look="main")
    traces = Box(x1, 38, ("traces", "recorded draft trees"))
    probe = Box(x1, 104, ("probe", "a running server"))
    calibrate = Box(x2, 71, ("calibrate", "acceptance and", "experts of text"))
    rows = Box(x1, 290, ("public timings", "of kernels"))
    compose = Box(x2, 290, ("compose", "an estimated table"))
    runtime = Box(x4, 71, ("runtime", "truncates each tree", "in the engine"))
    decide = Box(x4, 190, ("advise, replay", "which draft length,", "what it gains"))
    read = Box(x4, 290, ("report, export", "pages, engine files"))
    above, below = table.y - table.height / 2 - 1, table.y + table.height / 2 + 1
    paths = [
        f"M{traces.right()}L{calibrate.left(12)}",
        f"M{probe.right()}L{calibrate.left(-12)}",
        f"M{calibrate.right()}H450Q{x3} 71 {x3} 111V{above}",
        f"M{compose.right()}H450Q{x3} 290 {x3} 262V{below}",
        f"M{table.right(14)}L{runtime.left()}",
        f"M{table.right(-14)}L{read.left()}",
    ]
    arrows = chain(sweep, fit, table, decide) + chain(rows, compose)
    boxes = [sweep, fit, table, traces, probe, calibrate]
    boxes += [rows, compose, runtime, decide, read]
    label = "from measurements to a cost table and its readers"
    return drawing(780, 328, label, boxes, arrows + [arrow(path) for path in paths])


def union() -> str:
    """From the tokens of a tree to the experts that a forward reads."""
    root, a, b, c = (
        Box(x, y, (name,), 50.0)
        for x, y, name in [(35, 70, "root"), (110, 38, "a"), (110, 102, "b"),
                           (185, 38, "c")]
    )  # fmt: skip
    router = Box(305, 70, ("router", "2 experts a token"), 150.0)
    experts = Box(480, 70, ("experts", "1, 4, 5, 7, 9", "U = 5"), 130.0, "main")
    latency = Box(660, 70, ("latency", "read 5 experts,", "multiply 4 tokens"), 150.0)
    forked = [arrow(f"M{root.right()}L{each.left()}") for each in (a, b)]
    into = [arrow(f"M{each.right()}L{router.left()}") for each in (b, c)]
    arrows = forked + chain(a, c) + into + chain(router, experts, latency)
    note = word(110, 138, "draft tree, n = 4")
    boxes = [root, a, b, c, router, experts, latency]
    return drawing(
        740, 146, "four tokens activate five experts", boxes, [*arrows, note]
    )


def architecture() -> str:
    """Rooms of the package by layer, and the files below them."""
    upper = {room for layer in LAYERS for room in layer}
    package = ROOT / "evict_profile"
    folders = {p.parent.name for p in package.glob("*/__init__.py")} - upper
    files = sorted({p.stem for p in package.glob("[a-z]*.py")} - upper)
    layers = [rooms for layer in LAYERS if (rooms := sorted(layer - {"__main__"}))]
    boxes = []
    for row, rooms in enumerate([*layers, sorted(folders)]):
        first = 390.0 - 61 * (len(rooms) - 1)
        boxes += [
            Box(first + 122 * place, 30.0 + 58 * row, (room,), 114.0)
            for place, room in enumerate(rooms)
        ]
    boxes.append(Box(390, 94.0 + 58 * row, ("files", ", ".join(files)), 740.0))
    downward = [arrow(f"M390 {48 + 58 * above}v21") for above in range(row + 1)]
    height = 124.0 + 58 * row
    return drawing(780, height, "a room imports rooms below it", boxes, downward)


def serving() -> str:
    """What passes between the host and SGLang's graphs in one step."""
    names = ("draft graph", "host", "verify graph of width m")
    boxes = [Box(104 + 276 * i, 26, (name,), 198.0) for i, name in enumerate(names)]
    lives = [arrow(f"M{box.x} 44V236", "life") for box in boxes]
    steps = [
        (104, 380, "scores, last acceptance, lengths"),
        (380, 380, "runtime decides m and nodes"),
        (380, 656, "kept nodes"),
        (656, 380, "results, padded to the full width"),
    ]
    drawn = list[str]()
    for row, (start, end, text) in enumerate(steps):
        y = 84 + 44 * row
        loop = f"M{start} {y}h34v16h-32"
        drawn.append(arrow(f"M{start} {y}H{end}" if start != end else loop))
        middle = (start + end) / 2 + 136 * (start == end)
        drawn.append(word(middle, y - 8 + 17 * (start == end), text))
    return drawing(760, 240, "one step of the plug-in", boxes, lives + drawn)


DRAWINGS = {
    "pipeline.svg": pipeline,
    "build/union.svg": union,
    "build/architecture.svg": architecture,
    "explanation/serving.svg": serving,
}


def main() -> None:
    """Write each drawing into its folder of pages."""
    for name, draw in DRAWINGS.items():
        write_text(draw(), Path(__file__).parent / name)


if __name__ == "__main__":
    main()
