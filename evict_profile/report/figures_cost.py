"""Drawings of the layers' cost, of the fit's errors and of the machine.

Values are in microseconds; ticks in the view's unit.
"""

from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from evict_profile.cells import Cell, cells_of
from evict_profile.report.data import View
from evict_profile.report.plotting import (
    colour_bar,
    dot,
    label_ends,
    line,
    log_axis,
    mark,
    percent_y,
    round_axis,
    shades,
)
from evict_profile.report.style import (
    ACCENT,
    BAD,
    PAPER,
    QUIET,
    SECOND,
    canvas,
    inline_svg,
)
from evict_profile.stats import Floats
from evict_profile.table import measured

FINE = 120
MAX_UNIONS = 4
TILES = 150.0
"""Points that a row of tiles covers."""


def surface(view: View) -> Markup:
    """Median latency of each measured cell over (n, U), and the path of routing."""
    medians = [view.medians[cell].value for cell in view.forced]
    with canvas() as figure:
        axes = figure.subplots()
        shade = colour_bar(axes, medians, view.what, view.unit)
        columns = len({cell.width for cell in view.forced})
        side = TILES / max(columns, len({cell.union for cell in view.forced}))
        for cell, us in zip(view.forced, medians, strict=True):
            text = f"n = {cell.width}, U = {cell.union}: {view.unit.of(us)}"
            mark(axes, cell.width, cell.union, text, "s", color=shade(us), ms=side)
        widths = _fine(view)
        path = np.maximum(view.unions(widths), view.forced[0].union)
        axes.plot(widths, path, color=SECOND)
        log_axis(axes, (cell.width for cell in view.forced), "verify width n")
        log_axis(axes, (cell.union for cell in view.forced), "", which="y")
        axes.margins(0.07)
        axes.grid(False)
        axes.set_title("union U, experts; cells measured")
    return inline_svg(figure, "surface", "cost over n and U")


def _fine(view: View) -> Floats:
    return np.geomspace(view.forced[0].width, view.forced[-1].width, FINE)


def forced(view: View) -> Markup:
    with canvas() as figure:
        forced_unions(figure.subplots(), view)
    return inline_svg(figure, "forced", "cost over n at forced unions")


def forced_unions(axes: Axes, view: View) -> None:
    """Cost over n, a line per union with its band, and medians of cells."""
    unions = sorted({cell.union for cell in view.forced})
    index = np.linspace(0, len(unions) - 1, min(MAX_UNIONS, len(unions)))
    ends, colours = [], shades(unions)
    for union in [unions[i] for i in index.round().astype(int)]:
        cells = [c for c in view.forced if c.union == union]
        widths = np.geomspace(cells[0].width, cells[-1].width, FINE)
        us, band = view.layers_us(widths, union)
        ends.append(line(axes, widths, us, f"U={union}", colours[union], band))
        for cell in cells:
            _median(axes, view, cell, colours[union], f"U = {union}")
    log_axis(axes, (cell.width for cell in view.forced), "verify width n")
    round_axis(axes, unit=view.unit)
    label_ends(axes, ends)
    axes.set_title(f"forced unions: {view.what}")


def routed(view: View) -> Markup:
    """Cost over n as the router chooses: by the fit, and measured."""
    widths = _fine(view)
    us, band = view.layers_us(widths, view.unions(widths))
    with canvas() as figure:
        axes = figure.subplots()
        line(axes, widths, us, "", ACCENT, band)
        natural = view.fitted.natural
        unions, cells = natural.points["observed_union"], cells_of(natural.points)
        for cell, union, fit in zip(cells, unions, natural.predicted_us, strict=True):
            if (cell.context, cell.batch) == view.place:
                text = f"U = {union:.0f} observed, {view.unit.bare(fit)} by the fit"
                _median(axes, view, cell, SECOND, text)
        log_axis(axes, (cell.width for cell in view.forced), "verify width n")
        round_axis(axes, unit=view.unit)
        axes.set_title(f"as routed: {view.what}")
    return inline_svg(figure, "routed", "cost over n as routed")


def _median(axes: Axes, view: View, cell: Cell, colour: str, union: str) -> None:
    median = view.medians[cell]
    text = f"n = {cell.width}, {union}: {view.unit.spread(median)}"
    dot(axes, cell.width, median, colour, text)


def residuals(view: View) -> Markup:
    """Relative held-out residual of each cell over its latency."""
    points, residuals = view.fitted.held_out["hinge"].points, view.residuals
    cells = cells_of(points)
    p90 = float(np.percentile(np.abs(residuals), 90))
    with canvas() as figure:
        axes = figure.subplots()
        percent_y(axes)
        shade = colour_bar(axes, [cell.union for cell in cells], "union U")
        for cell, us, off in zip(cells, points.latency_us, residuals, strict=True):
            mark(axes, us, off, f"{cell}: {off:+.1%}", color=shade(cell.union))
        round_axis(axes, "x", view.unit)
        for side in (p90, -p90):
            axes.axhline(side, color=QUIET, linewidth=0.9, dashes=(4, 3))
        axes.set_xlabel(f"measured {view.what}")
        axes.set_title("predicted over measured, less one")
    return inline_svg(figure, "residuals", "held-out residuals")


def drift(view: View) -> Markup:
    """The anchor's latency over the run, and the A/A floor."""
    latency, floor = (
        view.anchor_rows["latency_us"],
        measured(view.table.provenance).aa_floor,
    )
    with canvas() as figure:
        axes = figure.subplots()
        percent_y(axes)
        axes.axhspan(-floor, floor, color=QUIET, alpha=0.16, linewidth=0)
        off = (latency / latency.median() - 1.0).to_numpy()
        axes.plot(latency.index, off, "-o", color=ACCENT, linewidth=1.1, mec=PAPER)
        disturbed = view.timed.index[view.timed["events"] != ""]
        look: dict[str, Any] = {"transform": axes.get_xaxis_transform()}
        axes.plot(disturbed, 0.0 * disturbed, "v", color=BAD, clip_on=False, **look)
        axes.set_xlabel("samples measured before it")
        axes.set_title("the anchor, against its median")
    return inline_svg(figure, "drift", "anchor over the run")
