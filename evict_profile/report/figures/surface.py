"""The cost surface: one map over (n, U), and one line in U for each n."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from evict_profile.report.html import Markup
from evict_profile.report.plotting import (
    End,
    apart,
    label_ends,
    log_axis,
    shades,
    title_y,
    whiskers,
)
from evict_profile.report.style import ACCENT, INK, PAPER, SECOND, draw
from evict_profile.report.view import View
from evict_profile.stats import Floats

LEVELS = 8
FINE = 120


def surface(view: View) -> Markup:
    """Contours of the fitted cost, beside its lines among the measured medians."""

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.15))
        _map(left, view)
        _lines(right, view)

    return draw("surface", "cost over n and U", paint, width=9.6, height=4.3)


def _map(axes: Axes, view: View) -> None:
    widths = np.geomspace(view.widths[0], view.widths[-1], FINE)
    unions = np.geomspace(view.unions[0], view.unions[-1], FINE)
    grid_n, grid_u = np.meshgrid(widths, unions)
    cost = view.layers_us(grid_n.ravel(), grid_u.ravel()).reshape(grid_n.shape)
    shown = cost / view.unit.microseconds
    tints = [to_rgba(ACCENT, alpha) for alpha in np.linspace(0.06, 0.72, LEVELS + 3)]
    # Lines are cut so that their numbers stay clear of the corner, fills are covered so
    # that its edge is smooth.
    within = np.ma.masked_where(grid_u > _most(view, grid_n) * 1.01, shown)
    filled = axes.contourf(grid_n, grid_u, shown, levels=LEVELS, colors=tints)
    levels = filled.levels
    lines = axes.contour(
        grid_n, grid_u, within, levels=levels, colors=INK, linewidths=0.5
    )
    axes.clabel(lines, list(lines.levels)[1::2], fmt="%g", fontsize=8, colors=INK)
    _cover(axes, view, widths)
    _marks(axes, view, widths)


def _cover(axes: Axes, view: View, widths: Floats) -> None:
    """Hide what cannot be: unions that so few tokens cannot wake."""
    most = _most(view, widths)
    axes.fill_between(widths, most, view.unions[-1], color=PAPER, linewidth=0, zorder=3)


def _most(view: View, widths: Floats) -> Floats:
    model = view.table.model
    slots = widths * view.batch * model.moe.top_k
    return np.minimum(float(model.moe.num_experts), slots)


def _marks(axes: Axes, view: View, widths: Floats) -> None:
    seen = [(c.width, c.union) for c in view.forced_here]
    axes.plot(
        *zip(*seen, strict=True),
        "o",
        color=INK,
        markersize=2.6,
        zorder=5,
        clip_on=False,
    )
    path = np.maximum(view.growth(widths * view.batch), view.unions[0])
    axes.plot(widths, path, color=SECOND, linewidth=1.8, zorder=4)
    log_axis(axes, view.widths, "verify width n")
    log_axis(axes, view.unions, "", which="y")
    middle = FINE // 2
    axes.annotate(
        "uniform routing",
        (widths[middle], path[middle]),
        xytext=(-8, 4),
        textcoords="offset points",
        color=SECOND,
        ha="right",
    )
    axes.grid(False)
    title_y(axes, f"union U, experts   (contours: {view.unit.name})")


def _lines(axes: Axes, view: View) -> None:
    colours = shades(view.widths)
    unit = view.unit
    ends = []
    for width in view.widths:
        cells = sorted(c for c in view.forced_here if c.width == width)
        unions = np.linspace(cells[0].union, cells[-1].union, 60)
        cost = view.layers_us(np.full(60, width), unions) / unit.microseconds
        colour = colours[width]
        axes.plot(unions, cost, color=colour)
        found = [view.intervals[c] for c in cells]
        whiskers(axes, [c.union for c in cells], found, unit, colour)
        ends.append(End(unions[-1], float(cost[-1]), f"n={width}", colour))
    axes.set_ylim(bottom=0.0)
    axes.set_xlim(left=0.0)
    axes.set_xticks([0, *apart(view.unions)])
    axes.set_xlabel("union U, experts")
    label_ends(axes, ends)
    title_y(axes, f"latency of {view.layers}, {unit.name}")
