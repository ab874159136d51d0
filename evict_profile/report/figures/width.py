"""Cost against n: at forced unions on the left, with real routing on the right."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evict_profile.report.html import Markup
from evict_profile.report.plotting import (
    End,
    label_ends,
    log_axis,
    shades,
    time_axis,
    title_y,
    whiskers,
)
from evict_profile.report.style import ACCENT, INK, QUIET, SECOND, draw
from evict_profile.report.view import View

MOST_UNIONS = 4
FINE = 80


def cost_of_width(view: View) -> Markup:
    """Fitted lines and medians at some unions; natural routing; uniform growth."""

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        _forced(left, view)
        _routed(right, view)
        left.set_ylim(bottom=0.75 * left.get_ylim()[0])

    return draw("width", "cost against n", paint, width=9.6, height=4.2)


def chosen_unions(unions: tuple[int, ...]) -> list[int]:
    """A few unions from the smallest to the largest."""
    places = np.linspace(0, len(unions) - 1, min(MOST_UNIONS, len(unions)))
    return [unions[i] for i in places.round().astype(int)]


def _forced(axes: Axes, view: View) -> None:
    colours, unit = shades(view.unions), view.unit
    ends = []
    for union in chosen_unions(view.unions):
        cells = sorted(c for c in view.forced_here if c.union == union)
        if not cells:
            continue
        widths = np.geomspace(cells[0].width, cells[-1].width, FINE)
        cost = view.layers_us(widths, np.full(FINE, union)) / unit.microseconds
        axes.plot(widths, cost, color=colours[union])
        found = [view.intervals[c] for c in cells]
        whiskers(axes, [c.width for c in cells], found, unit, colours[union])
        ends.append(End(widths[-1], float(cost[-1]), f"U={union}", colours[union]))
    log_axis(axes, view.widths, "verify width n")
    time_axis(axes)
    label_ends(axes, ends)
    title_y(axes, f"forced unions: latency of {view.layers}, {unit.name}")


def _routed(axes: Axes, view: View) -> None:
    unit = view.unit
    widths = np.geomspace(view.widths[0], view.widths[-1], FINE)
    unions = view.growth(widths * view.batch)
    low, high = (side / unit.microseconds for side in view.layers_band(widths, unions))
    cost = view.layers_us(widths, unions) / unit.microseconds
    axes.fill_between(widths, low, high, color=ACCENT, alpha=0.22, linewidth=0)
    axes.plot(widths, cost, color=ACCENT)
    _natural(axes, view)
    log_axis(axes, view.widths, "verify width n")
    axes.tick_params(labelleft=True)
    _key(axes)
    title_y(axes, f"routed: latency of {view.layers}, {unit.name}")


def _natural(axes: Axes, view: View) -> None:
    natural = view.fitted.points.where("layers", "natural")
    here = [(c.context, c.batch) == (view.context, view.batch) for c in natural.cells]
    own = natural.take(np.array(here, dtype=bool))
    if not len(own):
        return
    widths = [c.width for c in own.cells]
    found = [view.intervals[c] for c in own.cells]
    whiskers(axes, widths, found, view.unit, SECOND)
    price = view.fitted.natural_us(own) / view.unit.microseconds
    axes.plot(widths, price, "x", color=INK, markersize=6, markeredgewidth=1.1)
    unions = view.fitted.observed_union(own)
    for width, union, interval in zip(widths, unions, found, strict=True):
        axes.annotate(
            f"U={union:.0f}",
            (width, interval.median / view.unit.microseconds),
            xytext=(0, -12),
            textcoords="offset points",
            ha="center",
            va="top",
            color=QUIET,
            fontsize=7.5,
        )


def _key(axes: Axes) -> None:
    said = [
        ("price at uniform growth, 90 % interval", ACCENT),
        ("measured, the router choosing", SECOND),
        ("×  price at the union observed", INK),  # noqa: RUF001
    ]
    for row, (text, colour) in enumerate(said):
        axes.text(
            0.02,
            0.97 - 0.062 * row,
            text,
            transform=axes.transAxes,
            color=colour,
            va="top",
        )
