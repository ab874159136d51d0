"""Drawings of how far a fit can be trusted: its errors, its machine, its slope."""

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from evict_profile.physics import SLOPE_RANGE
from evict_profile.report.data import View
from evict_profile.report.figures_cost import fit_line
from evict_profile.report.plotting import (
    End,
    bars_across,
    dot,
    key,
    label_ends,
    log_axis,
    note,
    percent_y,
    shades,
    time_axis,
    union_axis,
    whisker,
)
from evict_profile.report.style import (
    ACCENT,
    BAD,
    INK,
    PAPER,
    QUIET,
    SECOND,
    canvas,
    inline_svg,
)
from evict_profile.stats import ErrorSummary
from evict_profile.table import measured

FITS = {
    "hinge": "ramps in U and n (this table)",
    "affine": "affine: a + b U + c n",
    "roofline": "roofline, both rates fitted",
    "tokens only": "any monotone function of n",
}
"""What each model of the cost is."""
LABEL_ROOM = 0.08
"""Share of the axis that a number needs between line and tick."""


def residuals(view: View) -> Markup:
    """Relative held-out residual of each cell against its latency."""
    colours = shades(miss.cell.union for miss in view.misses)
    p90 = float(np.percentile([abs(miss.residual) for miss in view.misses], 90))
    with canvas(9.6, 3.9) as figure:
        axes = figure.subplots()
        percent_y(axes)
        for miss in view.misses:
            latency = miss.measured_us / view.unit.microseconds
            dot(axes, latency, miss.residual, colours[miss.cell.union])
        time_axis(axes, which="x")
        edge = axes.get_xlim()[1]
        for side in (p90, -p90):
            axes.axhline(side, color=QUIET, linewidth=0.9, dashes=(4, 3))
        axes.set_xlim(right=edge)
        label_ends(axes, [End(edge, s, f"{s:+.1%}  p90", QUIET) for s in (p90, -p90)])
        axes.set_xlabel(f"measured latency of {view.layers}, {view.unit.name}")
        key(axes, colours, title="U", x=1.09)
        axes.set_title("predicted over measured, less one; cells held out")
    return inline_svg(figure, "residuals", "held-out residuals")


def comparison(view: View) -> Markup:
    """Held-out errors: a bar to the median, a line to the p90, a tick at the max."""
    errors = view.table.fit.held_out
    widest = max(error.max for error in errors.values())
    with canvas(9.6, 0.9 + 0.42 * len(errors)) as figure:
        axes = figure.subplots()
        for row, (name, error) in enumerate(errors.items()):
            _error_bar(axes, row, error, ACCENT if name == "hinge" else QUIET, widest)
        axes.set_yticks(range(len(errors)), [FITS.get(name, name) for name in errors])
        bars_across(axes)
        axes.xaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))
        axes.set_xlabel("relative error on cells held out")
    return inline_svg(figure, "comparison", "held-out error by model")


def _error_bar(
    axes: Axes, row: int, error: ErrorSummary, colour: str, widest: float
) -> None:
    axes.barh(row, error.median, height=0.5, color=colour)
    axes.plot([error.median, error.p90], [row, row], color=colour, linewidth=2.2)
    axes.plot([error.max], [row], "|", color=colour, markersize=9, markeredgewidth=1.6)
    # Where the tick is near the line's end, the number goes behind it.
    near = error.max - error.p90 < LABEL_ROOM * widest
    end = error.max if near else error.p90
    note(axes, f"{error.median:.1%}", end, row, INK, (6, 0), va="center")


def drift(view: View) -> Markup:
    """The anchor in order, the A/A band behind; raw clock and reference below."""
    rows, made = view.anchor_rows, measured(view.table.provenance)
    floor, paired = made.aa_floor, made.reference_us is not None
    with canvas(9.6, 2.5 + 1.9 * paired) as figure:
        panels = figure.subplots(1 + paired, 1, sharex=True, squeeze=False).ravel()
        top = panels[0]
        top.axhspan(-floor, floor, color=QUIET, alpha=0.16, linewidth=0)
        _relative(top, rows["latency_us"], ACCENT)
        top.set_title("anchor latency, against its median")
        if paired:
            _before_pairing(panels[1], rows)
            limits = [limit for axes in panels for limit in axes.get_ylim()]
            for axes in panels:
                axes.set_ylim(min(limits), max(limits))
        edge = {"transform": top.get_yaxis_transform(), "va": "center"}
        top.text(1.01, floor, f"A/A floor ±{floor:.1%}", color=QUIET, **edge)
        disturbed = view.timed.index[view.timed["events"] != ""]
        look = {"transform": top.get_xaxis_transform(), "clip_on": False}
        top.plot(disturbed, 0.0 * disturbed, "v", color=BAD, markersize=5, **look)
        panels[-1].set_xlabel("samples measured before it")
    return inline_svg(figure, "drift", "anchor over the run")


def _before_pairing(axes: Axes, rows: pd.DataFrame) -> None:
    clock = _relative(axes, rows["clock_us"], SECOND)
    reference = _relative(axes, rows["reference_us"], QUIET)
    edge = axes.get_xlim()[1]
    axes.set_xlim(right=edge)
    ends = [
        End(edge, clock, "raw clock", SECOND),
        End(edge, reference, "reference", QUIET),
    ]
    label_ends(axes, ends, gap=0.11)
    axes.set_title("the same samples before pairing, each against its median")


def _relative(axes: Axes, values: pd.Series, colour: str) -> float:
    """Draw values against their median; the last one is returned."""
    relative = values / values.median() - 1.0
    x, y = relative.index.to_numpy(), relative.to_numpy()
    percent_y(axes)
    axes.plot(x, y, "o-", color=colour, linewidth=1.1, markeredgecolor=PAPER)
    return float(y[-1])


def nuisance(view: View) -> Markup:
    """Skewed over balanced latency of each cell, shaded by its union."""
    colours = shades(cell.union for cell in view.split_ratios)
    order = {union: i - (len(colours) - 1) / 2 for i, union in enumerate(colours)}
    with canvas(9.6, 3.6) as figure:
        axes = figure.subplots()
        percent_y(axes)
        for cell, ratio in view.split_ratios.items():
            x = cell.tokens * 2.0 ** (0.07 * order[cell.union])
            colour = colours[cell.union]
            whisker(axes, x, ratio.low - 1.0, ratio.high - 1.0, colour)
            dot(axes, x, ratio.value - 1.0, colour)
        tokens = (cell.tokens for cell in view.split_ratios)
        log_axis(axes, tokens, "tokens verified in all, t")
        key(axes, colours, title="U", x=1.0)
        axes.set_title("skewed over balanced latency, less one")
    return inline_svg(figure, "nuisance", "skewed over balanced latency")


def bandwidth(view: View) -> Markup:
    """Latency in U where most unions were forced; the implied bandwidth at each n."""
    with canvas(9.6, 3.9) as figure:
        left, right = figure.subplots(1, 2)
        _slope(left, view)
        _implied(right, view)
    return inline_svg(figure, "bandwidth", "slope in U and bandwidth")


def _slope(axes: Axes, view: View) -> None:
    table, cells = view.table, view.at_width(view.slope_width)
    copy_us = table.model.bytes_per_expert / table.provenance.bandwidth_gbps / 1e3
    per_expert = copy_us * table.fit.measured_layers / view.unit.microseconds
    fit = fit_line(axes, view, cells, "union", ACCENT, "fit")
    unions = np.array([cells[0].union, cells[-1].union])
    lowest = view.layers_us([cells[0].width], unions[:1]) / view.unit.microseconds
    copy = lowest + (unions - unions[0]) * per_expert
    axes.plot(unions, copy, color=SECOND, linewidth=1.3, dashes=(4, 3))
    union_axis(axes, [c.union for c in cells])
    label_ends(axes, [fit, End(fit.x, float(copy[-1]), "at copy speed", SECOND)])
    axes.set_title(f"n={view.slope_width}: latency of {view.layers}, {view.unit.name}")


def _implied(axes: Axes, view: View) -> None:
    copy = view.table.provenance.bandwidth_gbps
    axes.axhspan(*(side * copy for side in SLOPE_RANGE), color=QUIET, alpha=0.13, lw=0)
    axes.axhline(copy, color=SECOND, linewidth=1.3, dashes=(4, 3))
    top = 1.6 * copy
    for width, implied in view.bandwidths.items():
        gbps = implied.gbps
        whisker(axes, width, gbps.low, min(gbps.high, top), ACCENT)
        axes.plot([width], [gbps.value], "o", color=ACCENT, markeredgecolor=PAPER)
    log_axis(axes, view.bandwidths, "verify width n")
    axes.set_ylim(0.0, top)
    edge = axes.get_xlim()[1]
    axes.set_xlim(right=edge)
    label_ends(axes, [End(edge, copy, "copy", SECOND)])
    axes.set_title("implied by the slope in U, GB/s")
