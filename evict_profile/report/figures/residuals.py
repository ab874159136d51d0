"""Held-out residuals of our fit: where it errs, and by how much."""

import numpy as np
from matplotlib.figure import Figure

from evict_profile.report.findings import misses
from evict_profile.report.html import Markup
from evict_profile.report.plotting import (
    End,
    dot,
    key,
    label_ends,
    percent_y,
    shades,
    time_axis,
    title_y,
)
from evict_profile.report.style import INK, QUIET, draw
from evict_profile.report.view import View


def residuals(view: View) -> Markup:
    """Relative residual of each cell against its latency, shaded by its union."""
    every = misses(view.fitted.held_out["ours"])
    colours = shades(miss.cell.union for miss in every)
    unit = view.unit
    p90 = float(np.percentile([abs(miss.residual) for miss in every], 90))

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for miss in every:
            latency = miss.measured_us / unit.microseconds
            dot(axes, latency, miss.residual, colours[miss.cell.union])
        axes.axhline(0.0, color=INK, linewidth=0.8)
        time_axis(axes, which="x")
        edge = axes.get_xlim()[1]
        for side in (p90, -p90):
            axes.axhline(side, color=QUIET, linewidth=0.9, dashes=(4, 3))
        ends = [End(edge, s, f"{s:+.1%}  p90", QUIET) for s in (p90, -p90)]
        axes.set_xlim(right=edge)
        label_ends(axes, ends)
        percent_y(axes)
        axes.set_xlabel(f"measured latency of {view.layers}, {unit.name}")
        key(axes, colours, title="U", x=1.09)
        title_y(axes, "predicted over measured, less one; cells held out")

    return draw("residuals", "held-out residuals", paint, width=9.6, height=3.9)
