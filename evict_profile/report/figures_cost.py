"""Drawings of the cost, of the fit's errors and of the machine.

Values are in microseconds; ticks in the view's unit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba

from evict_profile.cells import Cell, cells_of
from evict_profile.report.data import View
from evict_profile.report.plotting import (
    End,
    key,
    label_ends,
    line,
    log_axis,
    note,
    percent_y,
    round_axis,
    shades,
    ticks_in,
    whisker,
)
from evict_profile.report.style import (
    ACCENT,
    BAD,
    INK,
    PAPER,
    QUIET,
    RULE,
    SECOND,
    canvas,
    inline_svg,
)
from evict_profile.table import Staircase, measured

LEVELS = 8
FINE = 120
MAX_UNIONS = 4
PANELS_A_ROW = 2


def surface(view: View) -> Markup:
    """Contours of the fitted cost over (n, U), and the path of routing."""
    with canvas(9.6, 4.3) as figure:
        _contours(figure.subplots(), view)
    return inline_svg(figure, "surface", "cost over n and U")


def _contours(axes: Axes, view: View) -> None:
    moe, forced = view.table.model.moe, view.table.axes.union
    widths = np.geomspace(view.widths[0], view.widths[-1], FINE)
    unions = np.geomspace(forced[0], forced[-1], FINE)
    grid_n, grid_u = np.meshgrid(widths, unions)
    cost = view.layers_us(grid_n.ravel(), grid_u.ravel()).reshape(grid_n.shape)
    tints = [to_rgba(ACCENT, alpha) for alpha in np.linspace(0.06, 0.72, LEVELS + 3)]
    filled = axes.contourf(grid_n, grid_u, cost, levels=LEVELS, colors=tints)
    # So few tokens cannot activate more. Lines are cut there so that their numbers stay
    # clear of the corner, fills are covered so that its edge is smooth.
    highest = np.minimum(float(moe.num_experts), widths * view.batch * moe.top_k)
    within = np.ma.masked_where(grid_u > highest * 1.01, cost)
    lines = axes.contour(
        grid_n, grid_u, within, levels=filled.levels, colors=INK, linewidths=0.5
    )
    numbers: dict[str, Any] = {"fmt": ticks_in(view.unit), "fontsize": 8, "colors": INK}
    axes.clabel(lines, list(lines.levels)[1::2], **numbers)
    axes.fill_between(widths, highest, forced[-1], color=PAPER, linewidth=0, zorder=3)
    seen = [(c.width, c.union) for c in view.forced_here]
    (dots,) = axes.plot(*zip(*seen, strict=True), "o", color=INK, markersize=2.6)
    dots.set(zorder=5, clip_on=False)
    routed = view.table.activation.at(widths * view.batch, view.batch)
    path = np.maximum(routed, unions[0])
    axes.plot(widths, path, color=SECOND, linewidth=1.8, zorder=4)
    log_axis(axes, view.widths, "verify width n")
    log_axis(axes, forced, "", which="y")
    routing = "uniform routing" if view.table.activation.is_guess else "routing"
    middle = (widths[FINE // 2], path[FINE // 2])
    note(axes, routing, *middle, SECOND, (-8, 4), ha="right")
    axes.grid(False)
    axes.set_title(f"union U, experts   (contours: {view.unit.name})")


def _fit(axes: Axes, view: View, cells: Sequence[Cell], colour: str, name: str) -> End:
    """The fit at one union, and medians of its cells."""
    seen = [cell.width for cell in cells]
    widths = np.geomspace(seen[0], seen[-1], FINE)
    _medians(axes, view, cells, colour)
    return line(axes, widths, view.layers_us(widths, cells[0].union), name, colour)


def _medians(axes: Axes, view: View, cells: Sequence[Cell], colour: str) -> None:
    """Medians with 95 % intervals; hollow if too few samples give none."""
    for cell in cells:
        median = view.medians[cell]
        whisker(axes, cell.width, median, colour)
        (mark,) = axes.plot([cell.width], [median.value], "o", markeredgewidth=0.7)
        mark.set_markerfacecolor(colour if median.known else PAPER)
        mark.set_markeredgecolor(PAPER if median.known else colour)


def cost_of_width(view: View) -> Markup:
    """Cost over n: forced unions left, routed right."""
    with canvas(9.6, 4.2) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        forced_unions(left, view)
        _routed(right, view)
        left.set_ylim(bottom=0.75 * left.get_ylim()[0])
    return inline_svg(figure, "width", "cost against n")


def forced_unions(axes: Axes, view: View) -> None:
    """Cost over n, a line per union."""
    unions, ends = view.table.axes.union, []
    index = np.linspace(0, len(unions) - 1, min(MAX_UNIONS, len(unions)))
    colours = shades(unions)
    for union in [unions[i] for i in index.round().astype(int)]:
        cells = sorted(c for c in view.forced_here if c.union == union)
        if cells:
            name, colour = f"U={union}", colours[union]
            ends.append(_fit(axes, view, cells, colour, name))
    log_axis(axes, view.widths, "verify width n")
    round_axis(axes, unit=view.unit)
    label_ends(axes, ends)
    axes.set_title(f"forced unions: latency of {view.layers}, {view.unit.name}")


def _routed(axes: Axes, view: View) -> None:
    widths = np.geomspace(view.widths[0], view.widths[-1], FINE)
    unions = view.table.activation.at(widths * view.batch, view.batch)
    band = view.layers_band(widths, unions)
    line(axes, widths, view.layers_us(widths, unions), "", ACCENT, band)
    _natural(axes, view)
    log_axis(axes, view.widths, "verify width n")
    axes.tick_params(labelleft=True)
    is_guess = view.table.activation.is_guess
    activation = "uniform activation" if is_guess else "the table's activation"
    words = [
        (f"cost at {activation}, 95 % interval", ACCENT),
        ("measured, the router choosing", SECOND),
        ("×  cost at the union observed", INK),  # noqa: RUF001
    ]
    for row, (text, colour) in enumerate(words):
        place = (0.02, 0.97 - 0.062 * row)
        axes.text(*place, text, transform=axes.transAxes, color=colour, va="top")
    axes.set_title(f"routed: latency of {view.layers}, {view.unit.name}")


def _natural(axes: Axes, view: View) -> None:
    natural = view.fitted.natural
    points = natural.points
    here = (points["context"] == view.context) & (points["batch"] == view.batch)
    own = points[here]
    if own.empty:
        return
    widths = own["width"]
    _medians(axes, view, cells_of(own), SECOND)
    cost = natural.predicted_us[here]
    axes.plot(widths, cost, "x", color=INK, markersize=6, markeredgewidth=1.1)
    look: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 7.5}
    for cell, union in zip(cells_of(own), own["observed_union"], strict=True):
        height = view.medians[cell].value
        note(axes, f"U={union:.0f}", cell.width, height, QUIET, (0, -12), **look)


def staircases(view: View) -> Markup:
    """Step cost over tokens: a panel per batch, a line per context."""
    batches = sorted({s.batch for s in view.table.staircases})
    columns = min(PANELS_A_ROW, len(batches))
    rows = -(-len(batches) // columns)
    with canvas(9.6, 3.7 * rows) as figure:
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, batch in zip(panels, batches, strict=False):
            _staircases_at(axes, view, batch)
        for axes in panels[len(batches) :]:
            axes.remove()
    return inline_svg(figure, "staircase", "step cost against tokens verified")


def _staircases_at(axes: Axes, view: View, batch: int) -> None:
    here = [s for s in view.table.staircases if s.batch == batch]
    colours = shades(s.context for s in here)
    capture_sizes = view.table.axes.capture_sizes
    ends = [_stairs(axes, s, bool(capture_sizes), colours[s.context]) for s in here]
    cells = view.fitted.layer_points.index
    totals = {c.tokens for c in cells if c.batch == batch}
    log_axis(axes, totals, "tokens verified in all, t")
    round_axis(axes, unit=view.step_unit)
    for width in capture_sizes:
        if width * batch <= max(totals):
            axes.axvline(width * batch, color=RULE, linewidth=1.2, zorder=0)
    label_ends(axes, ends)
    axes.set_title(f"batch {batch}: step cost, {view.step_unit.name}")


def _stairs(axes: Axes, stairs: Staircase, padded: bool, colour: str) -> End:
    cost, low, high = (us[stairs.batch :] for us in stairs.costs[:3])
    tokens = np.arange(stairs.batch, stairs.batch + len(cost), dtype=np.float64)
    # Below a captured size a step costs what that size costs: the stair rises after it.
    style = "steps-pre" if padded else "default"
    name = f"context {stairs.context:,}"
    return line(axes, tokens, cost, name, colour, (low, high), drawstyle=style)


def residuals(view: View) -> Markup:
    """Relative held-out residual of each cell over its latency."""
    points, residuals = view.fitted.held_out["hinge"].points, view.residuals
    colours = shades(cell.union for cell in points.index)
    p90 = float(np.percentile(np.abs(residuals), 90))
    with canvas(9.6, 3.9) as figure:
        axes = figure.subplots()
        percent_y(axes)
        look: dict[str, Any] = {"s": 36, "linewidths": 0.6, "edgecolors": PAPER}
        fills = [colours[cell.union] for cell in points.index]
        axes.scatter(points.latency_us, residuals, c=fills, zorder=2, **look)
        round_axis(axes, "x", view.unit)
        edge = axes.get_xlim()[1]
        for side in (p90, -p90):
            axes.axhline(side, color=QUIET, linewidth=0.9, dashes=(4, 3))
        axes.set_xlim(right=edge)
        label_ends(axes, [End(edge, s, f"{s:+.1%}  p90", QUIET) for s in (p90, -p90)])
        axes.set_xlabel(f"measured latency of {view.layers}, {view.unit.name}")
        key(axes, colours, title="U", x=1.09)
        axes.set_title("predicted over measured, less one; cells held out")
    return inline_svg(figure, "residuals", "held-out residuals")


def drift(view: View) -> Markup:
    """The anchor over the run with and without pairing, and the A/A floor."""
    rows, made = view.anchor_rows, measured(view.table.provenance)
    floor, paired = made.aa_floor, made.reference_us is not None
    with canvas(9.6, 3.2) as figure:
        axes = figure.subplots()
        percent_y(axes)
        axes.axhspan(-floor, floor, color=QUIET, alpha=0.16, linewidth=0)
        ends = (
            [_relative(axes, rows["clock_us"], SECOND, "raw clock")] if paired else []
        )
        ends.append(_relative(axes, rows["latency_us"], ACCENT, "latency"))
        edge = axes.get_xlim()[1]
        axes.set_xlim(right=edge)
        ends.append(End(edge, floor, f"A/A floor ±{floor:.1%}", QUIET))
        label_ends(axes, [end._replace(x=edge) for end in ends], gap=0.08)
        disturbed = view.timed.index[view.timed["events"] != ""]
        look: dict[str, Any] = {"transform": axes.get_xaxis_transform()}
        axes.plot(disturbed, 0.0 * disturbed, "v", color=BAD, clip_on=False, **look)
        axes.set_xlabel("samples measured before it")
        axes.set_title("the anchor, against its median")
    return inline_svg(figure, "drift", "anchor over the run")


def _relative(axes: Axes, values: pd.Series, colour: str, name: str) -> End:
    x, y = values.index.to_numpy(), (values / values.median() - 1.0).to_numpy()
    look: dict[str, Any] = {"marker": "o", "linewidth": 1.1, "markeredgecolor": PAPER}
    return line(axes, x, y, name, colour, **look)
