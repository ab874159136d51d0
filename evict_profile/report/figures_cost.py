"""Drawings of the layers' cost, of the fit's errors and of the machine.

Values are in microseconds; ticks in milliseconds.
"""

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from evict_profile.cells import Cell, cells_of
from evict_profile.report import plotting
from evict_profile.report.data import View
from evict_profile.report.numbers import MS
from evict_profile.report.plotting import End
from evict_profile.report.style import ACCENT, BAD, QUIET, SECOND, canvas, inline_svg
from evict_profile.stats import Floats
from evict_profile.table import measured

FINE = 120
MAX_UNIONS = 4
TILES = 150.0
"""Points that a row of tiles covers."""


def surface(view: View) -> Markup:
    medians = [view.medians[cell].value for cell in view.forced]
    n, u = zip(*((cell.width, cell.union) for cell in view.forced), strict=True)
    side = TILES / max(len({*n}), len({*u}))
    with canvas() as figure:
        axes = figure.subplots()
        shade = plotting.colour_bar(axes, medians, view.what, MS)
        for x, y, us in zip(n, u, medians, strict=True):
            text = f"n = {x}, U = {y}: {MS.of(us)}"
            plotting.mark(axes, x, y, text, "s", color=shade(us), ms=side)
        widths = _fine(view)
        axes.plot(widths, np.maximum(view.unions(widths), u[0]), color=SECOND)
        plotting.log_axis(axes, n, "verify width n")
        plotting.log_axis(axes, u, "union U, experts", "y")
        axes.margins(0.07)
        axes.grid(False)
    return inline_svg(figure, "surface", "cost over n and U")


def _fine(view: View) -> Floats:
    return np.geomspace(view.forced[0].width, view.forced[-1].width, FINE)


def widths(view: View) -> Markup:
    natural, n = view.fitted.natural, _fine(view)
    observed, cells = natural.points["observed_union"], cells_of(natural.points)
    with canvas() as figure:
        axes = figure.subplots()
        us, band = view.layers_us(n, view.unions(n))
        end = plotting.line(axes, n, us, "routed", SECOND, band, linestyle="--")
        for cell, union, fit in zip(cells, observed, natural.predicted_us, strict=True):
            if (cell.context, cell.batch) == view.place:
                text = f"U = {union:.0f} as routed, {MS.bare(fit)} by the fit"
                _median(axes, view, cell, SECOND, text)
        forced_unions(axes, view, end)
        axes.set_title(view.what)
    return inline_svg(figure, "widths", "cost over n at forced unions and as routed")


def forced_unions(axes: Axes, view: View, *others: End) -> None:
    unions = sorted({cell.union for cell in view.forced})
    index = np.linspace(0, len(unions) - 1, min(MAX_UNIONS, len(unions)))
    ends, colours = [*others], plotting.shades(unions)
    for union in [unions[i] for i in index.round().astype(int)]:
        cells = [cell for cell in view.forced if cell.union == union]
        n = np.geomspace(cells[0].width, cells[-1].width, FINE)
        us, band = view.layers_us(n, union)
        name, colour = f"U={union}", colours[union]
        ends.append(plotting.line(axes, n, us, name, colour, band))
        for cell in cells:
            _median(axes, view, cell, colour, f"U = {union}")
    plotting.log_axis(axes, (cell.width for cell in view.forced), "verify width n")
    plotting.ms_axis(axes)
    plotting.label_ends(axes, ends)


def _median(axes: Axes, view: View, cell: Cell, colour: str, union: str) -> None:
    median = view.medians[cell]
    text = f"n = {cell.width}, {union}: {MS.spread(median)}"
    plotting.dot(axes, cell.width, median, colour, text)


def residuals(view: View) -> Markup:
    points, residuals = view.fitted.held_out["hinge"].points, view.residuals
    cells = cells_of(points)
    p90 = float(np.percentile(np.abs(residuals), 90))
    with canvas() as figure:
        axes = figure.subplots()
        plotting.percent_y(axes)
        shade = plotting.colour_bar(axes, [cell.union for cell in cells], "union U")
        for cell, us, off in zip(cells, points.latency_us, residuals, strict=True):
            text = f"{cell}: {off:+.1%}"
            plotting.mark(axes, us, off, text, color=shade(cell.union))
        plotting.ms_axis(axes, "x")
        for side in (p90, -p90):
            axes.axhline(side, color=QUIET, linewidth=0.9, dashes=(4, 3))
        axes.set_xlabel(f"measured {view.what}")
        axes.set_title("predicted over measured, less one")
    return inline_svg(figure, "residuals", "held-out residuals")


def drift(view: View) -> Markup:
    """The anchor's latency over the run, and the A/A floor."""
    latency, events = view.anchor_rows["latency_us"], view.timed["events"]
    floor = measured(view.table.provenance).aa_floor
    with canvas() as figure:
        axes = figure.subplots()
        plotting.percent_y(axes)
        axes.axhspan(-floor, floor, color=QUIET, alpha=0.16, linewidth=0)
        off = latency / latency.median() - 1.0
        axes.plot(off.index, off, "-o", color=ACCENT, linewidth=1.1)
        disturbed = view.timed.index[events != ""]
        axes.plot(disturbed, 0.0 * disturbed - floor, "v", color=BAD, ms=6.0)
        axes.set_xlabel("samples measured before it")
        axes.set_title("the anchor, against its median")
    return inline_svg(figure, "drift", "anchor over the run")
