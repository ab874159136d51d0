"""How much the split of tokens over experts matters, where it was measured."""

import numpy as np
from matplotlib.figure import Figure

from evict_profile.report.findings import split_ratios
from evict_profile.report.html import Markup
from evict_profile.report.plotting import dot, key, log_axis, percent_y, shades, title_y
from evict_profile.report.style import INK, draw
from evict_profile.report.view import View


def nuisance(view: View) -> Markup:
    """Skewed over balanced latency of each cell, shaded by its union."""
    found = split_ratios(view.intervals)
    colours = shades(r.cell.union for r in found)
    order = {union: i - (len(colours) - 1) / 2 for i, union in enumerate(colours)}

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.axhline(0.0, color=INK, linewidth=0.8)
        for r in found:
            x = r.cell.tokens * 2.0 ** (0.07 * order[r.cell.union])
            colour = colours[r.cell.union]
            if np.isfinite(r.high) and np.isfinite(r.low):
                axes.plot([x, x], [r.low - 1.0, r.high - 1.0], color=colour, lw=1.0)
            dot(axes, x, r.ratio - 1.0, colour)
        log_axis(axes, (r.cell.tokens for r in found), "tokens verified in all, t")
        percent_y(axes)
        key(axes, colours, title="U", x=1.0)
        title_y(axes, "skewed over balanced latency, less one")

    return draw("nuisance", "skewed over balanced latency", paint, 9.6, 3.6)
