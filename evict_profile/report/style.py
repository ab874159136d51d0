"""Colours and fonts of pages and drawings.

Drawings use stand-in colours; `inline_svg` replaces them by the CSS variables of
`templates/colours.css`, which has a value for light and for dark mode.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from io import StringIO
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

NAMES = ("ink", "quiet", "rule", "paper", "accent", "second", "bad")
VARIABLES = {
    f"#0101{number:02x}": f"--{name}"
    for number, name in enumerate([*NAMES, *(f"ramp-{i}" for i in range(8))])
}
"""From stand-ins to CSS variables; the ramp goes from small to large values."""

INK, QUIET, RULE, PAPER, ACCENT, SECOND, BAD, *RAMP = VARIABLES

HOVER = "hover:"
"""Begins the `gid` of an artist; what follows is shown where a pointer rests on it."""

TICKS = {"color": QUIET, "labelsize": 9.0, "major.size": 3.0}
THEME: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "evict-profile",
    "font.family": ["DejaVu Sans"],
    "font.size": 10.0,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": QUIET,
    "axes.titlecolor": INK,
    "axes.titlesize": "medium",
    "axes.titlelocation": "left",
    "axes.titlepad": 9.0,
    "axes.labelsize": 9.0,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.grid.axis": "y",
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    **{f"{axis}tick.{name}": v for axis in "xy" for name, v in TICKS.items()},
    "lines.linewidth": 1.6,
    "lines.markersize": 4.0,
    "lines.markeredgecolor": PAPER,
    "lines.markeredgewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "legend.handlelength": 1.0,
}


@contextmanager
def canvas(width: float = 4.8, height: float = 3.6) -> Iterator[Figure]:
    """A figure of `width` x `height` inches at 72 points; by default a phone's."""
    with mpl.rc_context(THEME):
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.06)  # type: ignore[union-attr,call-arg]
        yield figure


def inline_svg(figure: Figure, name: str, label: str) -> Markup:
    """A figure as inline SVG; ids begin with `name`, `label` is read aloud."""
    text = StringIO()
    with mpl.rc_context(THEME):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    body = text.getvalue()
    body = body[body.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)
    body = re.sub(f'<g id="{HOVER}([^"]*)">', r"<g><title>\1</title>", body)
    body = re.sub(r'<g id="[^"]*">', "<g>", body)
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = body.replace('xlink:href="#', f'href="#{name}-')
    body = body.replace("url(#", f"url(#{name}-")
    body = re.sub(r" font-family: [^;\"]*;", "", body)
    for stand_in, variable in VARIABLES.items():
        body = body.replace(stand_in, f"var({variable})")
    box = re.search(r'viewBox="[^"]*"', body)
    assert box, "matplotlib gives every SVG a viewBox"
    start = f'<svg {box[0]} role="img" aria-label="{escape(label)}">'
    # Matplotlib escapes what it writes, and the label is escaped above.
    body = re.sub(r"\s*\n\s*", " ", body[body.index(">") + 1 :])
    return Markup(start + body)  # noqa: S704
