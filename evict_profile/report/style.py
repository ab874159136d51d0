"""One look for page and drawings, in light and in dark.

Matplotlib writes colours into an SVG once and for all; a page has two modes. So a
drawing is made in stand-in colours that no one would choose, and each is replaced
by a CSS variable, to which the page gives one value a mode.
"""

import re
from collections.abc import Callable
from html import escape
from io import StringIO
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from evict_profile.report.html import Markup

INK, QUIET, RULE, PAPER = "#010101", "#010102", "#010103", "#010104"
ACCENT, SECOND, BAD = "#010105", "#010106", "#010107"
RAMP = tuple(f"#0201{i:02x}" for i in range(8))
"""Stand-ins of eight shades, from small to large."""

LIGHT = {
    INK: "#1d2229",
    QUIET: "#626b76",
    RULE: "#dfe3e8",
    PAPER: "#ffffff",
    ACCENT: "#1f5fa8",
    SECOND: "#c2501a",
    BAD: "#b3261e",
    **dict(
        zip(
            RAMP,
            [
                "#74b6ae",
                "#4ba3b0",
                "#358caf",
                "#2e73a9",
                "#31599c",
                "#383f87",
                "#37296d",
                "#2a164e",
            ],
            strict=True,
        )
    ),
}
DARK = {
    INK: "#e6e9ed",
    QUIET: "#9aa4b0",
    RULE: "#2f3640",
    PAPER: "#14181d",
    ACCENT: "#79b4f2",
    SECOND: "#f2955f",
    BAD: "#ff8a80",
    **dict(
        zip(
            RAMP,
            [
                "#46789a",
                "#4a8bab",
                "#559eb8",
                "#69b1c0",
                "#86c3c5",
                "#a8d4cb",
                "#cbe5d5",
                "#f0f7e4",
            ],
            strict=True,
        )
    ),
}
VARIABLES = {
    INK: "--ink",
    QUIET: "--quiet",
    RULE: "--rule",
    PAPER: "--paper",
    ACCENT: "--accent",
    SECOND: "--second",
    BAD: "--bad",
    **{shade: f"--ramp-{i}" for i, shade in enumerate(RAMP)},
}

THEME: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "evict-profile",
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": QUIET,
    "axes.titlecolor": INK,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 9.0,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.major.size": 3.0,
    "ytick.major.size": 0.0,
    "xtick.minor.size": 0.0,
    "ytick.minor.size": 0.0,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
}


def draw(
    name: str, says: str, paint: Callable[[Figure], None], width: float, height: float
) -> Markup:
    """A drawing as inline SVG; `says` is read aloud where it cannot be seen.

    Args:
        width, height: inches at 72 points; the page scales the drawing down.
    """
    with mpl.rc_context(THEME):
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.06)  # type: ignore[union-attr,call-arg]
        paint(figure)
        text = StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return inline_svg(text.getvalue(), name, says)


def inline_svg(document: str, name: str, says: str) -> Markup:
    """An SVG file's text made fit for a page: own ids, the page's font and colours."""
    body = document[document.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*">', "<g>", body)
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = body.replace('xlink:href="#', f'href="#{name}-')
    body = body.replace("url(#", f"url(#{name}-")
    body = re.sub(r" font-family: [^;\"]*;", "", body)
    for stand_in, variable in VARIABLES.items():
        body = body.replace(stand_in, f"var({variable})")
    box = re.search(r'viewBox="[^"]*"', body)
    assert box, "matplotlib gives every SVG a viewBox"
    opening = f'<svg {box[0]} role="img" aria-label="{escape(says)}">'
    return Markup(opening + re.sub(r"\s*\n\s*", " ", body[body.index(">") + 1 :]))


def variables(colours: dict[str, str]) -> str:
    """CSS declarations of one mode."""
    return "".join(f"{VARIABLES[k]}:{v};" for k, v in colours.items())


_LAYOUT = """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
 font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
main{max-width:920px;margin:0 auto;padding:40px 24px 72px}
h1{font-size:30px;line-height:1.2;letter-spacing:-.01em;margin:0 0 6px}
h2{font-size:20px;line-height:1.3;margin:0 0 8px}
h3{font-size:16px;margin:24px 0 6px}
p{max-width:70ch;margin:0 0 12px}
section{margin-top:56px;border-top:1px solid var(--rule);padding-top:24px}
.quiet,figcaption,summary{color:var(--quiet)}
.lead{font-size:18px}
figure{margin:18px 0 20px}
figcaption{font-size:14px;max-width:78ch;margin-top:6px}
.scroll{overflow-x:auto}
svg{display:block;width:100%;min-width:560px;height:auto;font-family:inherit}
svg *{stroke-linejoin:round;stroke-linecap:butt}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums;
 margin:12px 0}
th{font-weight:600;text-align:right;color:var(--quiet);white-space:nowrap}
th,td{padding:5px 14px 5px 0;border-bottom:1px solid var(--rule)}
td{text-align:right}
th:first-child,td:first-child{text-align:left}
.words th,.words td{text-align:left;vertical-align:top}
.words td:first-child{color:var(--quiet);white-space:nowrap}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(125px,1fr));
 gap:12px;margin:20px 0;padding:0;list-style:none}
.cards li{border:1px solid var(--rule);border-radius:8px;padding:12px 14px}
.cards b{display:block;font-size:25px;line-height:1.2;font-weight:650;
 font-variant-numeric:tabular-nums}
.cards span{display:block;font-size:13px;color:var(--quiet)}
.gates{list-style:none;padding:0;margin:12px 0}
.gates li{padding:5px 0 5px 92px;text-indent:-92px;max-width:90ch}
.gates b{display:inline-block;width:92px;text-indent:0;color:var(--accent)}
.gates .failed b{color:var(--bad)}
.flag{border-left:3px solid var(--second);padding-left:12px}
details{margin:12px 0}summary{cursor:pointer;font-size:14px}
code{font-size:13px;overflow-wrap:anywhere}
nav{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:14px;margin-top:20px}
nav a{color:var(--accent);text-decoration:none}
nav a:hover{text-decoration:underline}
@media print{section{break-inside:avoid}}
"""

CSS = (
    f":root{{color-scheme:light dark;{variables(LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{variables(DARK)}}}}}" + _LAYOUT
)
