"""Held-out errors of four cost models, side by side."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from evict_profile.report.html import Markup
from evict_profile.report.style import ACCENT, INK, QUIET, draw
from evict_profile.report.view import View
from evict_profile.stats import ErrorSummary

NAMES = {
    "ours": "ramps in U and n (this table)",
    "affine": "affine: a + b U + c n",
    "roofline": "roofline, both rates fitted",
    "tokens only": "any monotone function of n",
}
ROOM = 0.08
"""Share of the axis that a number needs between line and tick."""


def comparison(view: View) -> Markup:
    """A bar to the median, a line to the p90, a tick at the largest error."""
    errors = view.table.fit.held_out
    widest = max(error.max for error in errors.values())

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for row, (name, error) in enumerate(errors.items()):
            _bar(axes, row, error, ACCENT if name == "ours" else QUIET, widest)
        axes.set_yticks(range(len(errors)), [NAMES.get(n, n) for n in errors])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.invert_yaxis()
        axes.set_xlim(left=0.0)
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))
        axes.set_xlabel("relative error on cells held out")

    height = 0.9 + 0.42 * len(errors)
    return draw("comparison", "held-out error by model", paint, 9.6, height)


def _bar(axes: Axes, row: int, error: ErrorSummary, colour: str, widest: float) -> None:
    axes.barh(row, error.median, height=0.5, color=colour)
    axes.plot([error.median, error.p90], [row, row], color=colour, linewidth=2.2)
    axes.plot([error.max], [row], "|", color=colour, markersize=9, markeredgewidth=1.6)
    # Where the tick is near the line's end, the number goes behind it.
    near = error.max - error.p90 < ROOM * widest
    axes.annotate(
        f"{error.median:.1%}",
        (error.max if near else error.p90, row),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color=INK,
        annotation_clip=False,
    )
