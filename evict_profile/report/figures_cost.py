"""Drawings of what verification costs: over (n, U), against n, and as a staircase."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba

from evict_profile.cells import Cell
from evict_profile.report.data import View
from evict_profile.report.plotting import (
    End,
    label_ends,
    log_axis,
    note,
    shades,
    time_axis,
    union_axis,
    whisker,
)
from evict_profile.report.style import (
    ACCENT,
    INK,
    PAPER,
    QUIET,
    RULE,
    SECOND,
    canvas,
    inline_svg,
)
from evict_profile.table import Staircase

LEVELS = 8
FINE = 120
MAX_UNIONS = 4
PANELS_A_ROW = 2


def surface(view: View) -> Markup:
    """Contours of the fitted cost, beside its lines among the measured medians."""
    with canvas(9.6, 4.3) as figure:
        left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.15))
        _contours(left, view)
        colours = shades(view.widths)
        lines = [
            fit_line(right, view, view.at_width(n), "union", colours[n], f"n={n}")
            for n in view.widths
        ]
        union_axis(right, view.table.axes.union)
        label_ends(right, lines)
        right.set_title(f"latency of {view.layers}, {view.unit.name}")
    return inline_svg(figure, "surface", "cost over n and U")


def _contours(axes: Axes, view: View) -> None:
    moe, forced = view.table.model.moe, view.table.axes.union
    widths = np.geomspace(view.widths[0], view.widths[-1], FINE)
    unions = np.geomspace(forced[0], forced[-1], FINE)
    grid_n, grid_u = np.meshgrid(widths, unions)
    cost = view.layers_us(grid_n.ravel(), grid_u.ravel()).reshape(grid_n.shape)
    cost = cost / view.unit.microseconds
    tints = [to_rgba(ACCENT, alpha) for alpha in np.linspace(0.06, 0.72, LEVELS + 3)]
    filled = axes.contourf(grid_n, grid_u, cost, levels=LEVELS, colors=tints)
    # So few tokens cannot activate more. Lines are cut there so that their numbers stay
    # clear of the corner, fills are covered so that its edge is smooth.
    highest = np.minimum(float(moe.num_experts), widths * view.batch * moe.top_k)
    within = np.ma.masked_where(grid_u > highest * 1.01, cost)
    lines = axes.contour(
        grid_n, grid_u, within, levels=filled.levels, colors=INK, linewidths=0.5
    )
    axes.clabel(lines, list(lines.levels)[1::2], fmt="%g", fontsize=8, colors=INK)
    axes.fill_between(widths, highest, forced[-1], color=PAPER, linewidth=0, zorder=3)
    seen = [(c.width, c.union) for c in view.forced_here]
    (dots,) = axes.plot(*zip(*seen, strict=True), "o", color=INK, markersize=2.6)
    dots.set(zorder=5, clip_on=False)
    path = np.maximum(view.activation(widths * view.batch), unions[0])
    axes.plot(widths, path, color=SECOND, linewidth=1.8, zorder=4)
    log_axis(axes, view.widths, "verify width n")
    log_axis(axes, forced, "", which="y")
    routing = "uniform routing" if view.table.activation.is_guess else "routing"
    middle = (widths[FINE // 2], path[FINE // 2])
    note(axes, routing, *middle, SECOND, (-8, 4), ha="right")
    axes.grid(False)
    axes.set_title(f"union U, experts   (contours: {view.unit.name})")


def fit_line(
    axes: Axes,
    view: View,
    cells: Sequence[Cell],
    along: Literal["width", "union"],
    colour: str,
    name: str,
) -> End:
    """The fit along cells that differ in one axis, among their medians; its end."""
    seen = [getattr(cell, along) for cell in cells]
    x = np.geomspace(seen[0], seen[-1], FINE)
    widths = x if along == "width" else np.full(FINE, cells[0].width)
    unions = x if along == "union" else np.full(FINE, cells[0].union)
    cost = view.layers_us(widths, unions) / view.unit.microseconds
    axes.plot(x, cost, color=colour)
    _medians(axes, view, seen, cells, colour)
    return End(x[-1], float(cost[-1]), name, colour)


def _medians(
    axes: Axes, view: View, x: Sequence[int], cells: Sequence[Cell], colour: str
) -> None:
    """Medians with their 95 % intervals; hollow where too few samples give none."""
    scale = view.unit.microseconds
    for at, cell in zip(x, cells, strict=True):
        interval = view.intervals[cell]
        whisker(axes, at, interval.low / scale, interval.high / scale, colour)
        known = np.isfinite(interval.high)
        (mark,) = axes.plot([at], [interval.median / scale], "o", markeredgewidth=0.7)
        mark.set_markerfacecolor(colour if known else PAPER)
        mark.set_markeredgecolor(PAPER if known else colour)


def cost_of_width(view: View) -> Markup:
    """Cost against n: at forced unions on the left, as routed on the right."""
    with canvas(9.6, 4.2) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        forced_unions(left, view)
        _routed(right, view)
        left.set_ylim(bottom=0.75 * left.get_ylim()[0])
    return inline_svg(figure, "width", "cost against n")


def forced_unions(axes: Axes, view: View) -> None:
    """Cost against n, a line a union."""
    unions, ends = view.table.axes.union, []
    index = np.linspace(0, len(unions) - 1, min(MAX_UNIONS, len(unions)))
    colours = shades(unions)
    for union in [unions[i] for i in index.round().astype(int)]:
        cells = sorted(c for c in view.forced_here if c.union == union)
        if cells:
            name, colour = f"U={union}", colours[union]
            ends.append(fit_line(axes, view, cells, "width", colour, name))
    log_axis(axes, view.widths, "verify width n")
    time_axis(axes)
    label_ends(axes, ends)
    axes.set_title(f"forced unions: latency of {view.layers}, {view.unit.name}")


def _routed(axes: Axes, view: View) -> None:
    scale = view.unit.microseconds
    widths = np.geomspace(view.widths[0], view.widths[-1], FINE)
    unions = view.activation(widths * view.batch)
    low, high = (side / scale for side in view.layers_band(widths, unions))
    axes.fill_between(widths, low, high, color=ACCENT, alpha=0.22, linewidth=0)
    axes.plot(widths, view.layers_us(widths, unions) / scale, color=ACCENT)
    _natural(axes, view)
    log_axis(axes, view.widths, "verify width n")
    axes.tick_params(labelleft=True)
    is_guess = view.table.activation.is_guess
    activation = "uniform activation" if is_guess else "the table's activation"
    words = [
        (f"price at {activation}, 95 % interval", ACCENT),
        ("measured, the router choosing", SECOND),
        ("×  price at the union observed", INK),  # noqa: RUF001
    ]
    for row, (text, colour) in enumerate(words):
        place = (0.02, 0.97 - 0.062 * row)
        axes.text(*place, text, transform=axes.transAxes, color=colour, va="top")
    axes.set_title(f"routed: latency of {view.layers}, {view.unit.name}")


def _natural(axes: Axes, view: View) -> None:
    natural, place = view.fitted.natural, (view.context, view.batch)
    places = [(c.context, c.batch) for c in natural.points.cells]
    here = np.array([each == place for each in places], dtype=bool)
    cells = natural.points.take(here)
    if not len(cells):
        return
    scale = view.unit.microseconds
    widths = [c.width for c in cells.cells]
    _medians(axes, view, widths, cells.cells, SECOND)
    price = natural.predicted_us(view.fitted.cost)[here] / scale
    axes.plot(widths, price, "x", color=INK, markersize=6, markeredgewidth=1.1)
    look = {"ha": "center", "va": "top", "fontsize": 7.5}
    unions = natural.features["union"][here]
    for cell, width, union in zip(cells.cells, widths, unions, strict=True):
        height = view.intervals[cell].median / scale
        note(axes, f"U={union:.0f}", width, height, QUIET, (0, -12), **look)


def staircases(view: View) -> Markup:
    """What a step costs at t tokens: a panel a batch, a line a context."""
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
    ends = [_stairs(axes, view, s, colours[s.context]) for s in here]
    cells = view.fitted.layer_points.cells
    totals = {c.tokens for c in cells if c.batch == batch}
    log_axis(axes, totals, "tokens verified in all, t")
    time_axis(axes)
    for width in view.table.axes.ladder:
        if width * batch <= max(totals):
            axes.axvline(width * batch, color=RULE, linewidth=1.2, zorder=0)
    label_ends(axes, ends)
    axes.set_title(f"batch {batch}: step cost, {view.step_unit.name}")


def _stairs(axes: Axes, view: View, stairs: Staircase, colour: str) -> End:
    tokens = np.arange(stairs.batch, len(stairs.step_cost_us))
    columns = (stairs.step_cost_us, stairs.low_us, stairs.high_us)
    scale = view.step_unit.microseconds
    cost, low, high = (np.array(c)[stairs.batch :] / scale for c in columns)
    # Below a captured size a step costs what that size costs: the stair rises after it.
    padded = bool(view.table.axes.ladder)
    axes.fill_between(
        tokens,
        low,
        high,
        color=colour,
        step="pre" if padded else None,
        alpha=0.2,
        linewidth=0,
    )
    style = "steps-pre" if padded else "default"
    axes.plot(tokens, cost, color=colour, drawstyle=style)
    name = f"context {stairs.context:,}"
    return End(float(tokens[-1]), float(cost[-1]), name, colour)
