"""The slope in U against the device's bandwidth: the check that no table escapes."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evict_profile.physics import SLOPE_RANGE
from evict_profile.report.findings import Bandwidth
from evict_profile.report.html import Markup
from evict_profile.report.plotting import (
    End,
    apart,
    label_ends,
    log_axis,
    title_y,
    whiskers,
)
from evict_profile.report.style import ACCENT, PAPER, QUIET, SECOND, draw
from evict_profile.report.view import View

FINE = 80


def bandwidth(view: View, found: tuple[Bandwidth, ...]) -> Markup:
    """Latency in U at the widest n; implied bandwidth at each n."""

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        _slope(left, view)
        _implied(right, view, found)

    return draw("bandwidth", "slope in U and bandwidth", paint, 9.6, 3.9)


def slope_width(view: View) -> int:
    """The width at which most unions were forced; the union test's where it is one."""
    counts = {w: sum(c.width == w for c in view.forced_here) for w in view.widths}
    tested = int(view.table.provenance.union_test["width"])
    return max(counts, key=lambda w: (counts[w], w == tested))


def _slope(axes: Axes, view: View) -> None:
    unit, width = view.unit, slope_width(view)
    cells = sorted(c for c in view.forced_here if c.width == width)
    unions = np.linspace(cells[0].union, cells[-1].union, FINE)
    cost = view.layers_us(np.full(len(unions), width), unions) / unit.microseconds
    copy_us = view.table.model.bytes_per_expert / view.table.provenance.bandwidth_gbps
    per_expert = copy_us / 1e3 * view.table.fit.measured_layers / unit.microseconds
    floor = cost[0] + (unions - unions[0]) * per_expert
    axes.plot(unions, floor, color=SECOND, linewidth=1.3, dashes=(4, 3))
    axes.plot(unions, cost, color=ACCENT)
    found = [view.intervals[c] for c in cells]
    whiskers(axes, [c.union for c in cells], found, unit, ACCENT)
    axes.set_ylim(bottom=0.0)
    axes.set_xlim(left=0.0)
    axes.set_xlabel("union U, experts")
    axes.set_xticks([0, *apart([c.union for c in cells])])
    ends = [
        End(unions[-1], float(cost[-1]), "fit", ACCENT),
        End(unions[-1], float(floor[-1]), "at copy speed", SECOND),
    ]
    label_ends(axes, ends)
    title_y(axes, f"n={width}: latency of {view.layers}, {unit.name}")


def _implied(axes: Axes, view: View, found: tuple[Bandwidth, ...]) -> None:
    copy = view.table.provenance.bandwidth_gbps
    axes.axhspan(*(side * copy for side in SLOPE_RANGE), color=QUIET, alpha=0.13, lw=0)
    axes.axhline(copy, color=SECOND, linewidth=1.3, dashes=(4, 3))
    top = 1.6 * copy
    for b in found:
        ends = (b.gbps_low, min(b.gbps_high, top))
        axes.plot([b.width, b.width], ends, color=ACCENT, linewidth=1.1)
        axes.plot([b.width], [b.gbps], "o", color=ACCENT, markeredgecolor=PAPER)
    log_axis(axes, [b.width for b in found], "verify width n")
    axes.set_ylim(0.0, top)
    edge = axes.get_xlim()[1]
    axes.set_xlim(right=edge)
    label_ends(axes, [End(edge, copy, "copy", SECOND)])
    title_y(axes, "implied by the slope in U, GB/s")
