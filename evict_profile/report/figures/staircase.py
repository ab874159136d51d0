"""The staircase: what a step costs when t tokens are verified in all."""

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
)
from evict_profile.report.style import RULE, draw
from evict_profile.report.view import Unit, View, unit_for
from evict_profile.table import Staircase

PANELS_A_ROW = 2


def staircases(view: View) -> Markup:
    """One panel a batch, one line a context, each in its 90 % interval."""
    batches = sorted({s.batch for s in view.table.staircases})
    columns = min(PANELS_A_ROW, len(batches))
    rows = -(-len(batches) // columns)

    def paint(figure: Figure) -> None:
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, batch in zip(grid, batches, strict=False):
            _panel(axes, view, batch)
        for axes in grid[len(batches) :]:
            axes.remove()

    says = "step cost against tokens verified"
    return draw("staircase", says, paint, width=9.6, height=3.7 * rows)


def step_unit(view: View) -> Unit:
    """Unit for the cost of a step of the whole model."""
    return unit_for(max(max(s.step_cost_us) for s in view.table.staircases))


def _panel(axes: Axes, view: View, batch: int) -> None:
    own = [s for s in view.table.staircases if s.batch == batch]
    colours = shades(s.context for s in own)
    ends = [_stairs(axes, view, s, colours[s.context]) for s in own]
    cells = view.fitted.layer_points.cells
    totals = {c.tokens for c in cells if c.batch == batch}
    log_axis(axes, totals, "tokens verified in all, t")
    time_axis(axes)
    for rung in view.table.axes.ladder:
        if rung * batch <= max(totals):
            axes.axvline(rung * batch, color=RULE, linewidth=1.2, zorder=0)
    label_ends(axes, ends)
    title_y(axes, f"batch {batch}: step cost, {step_unit(view).name}")


def _stairs(axes: Axes, view: View, stairs: Staircase, colour: str) -> End:
    scale = step_unit(view).microseconds
    tokens = np.arange(stairs.batch, len(stairs.step_cost_us))
    columns = (stairs.step_cost_us, stairs.low_us, stairs.high_us)
    cost, low, high = (np.array(c)[stairs.batch :] / scale for c in columns)
    # Below a rung a step costs what the rung costs, so the stair rises after it.
    stepped = bool(view.table.axes.ladder)
    axes.fill_between(
        tokens,
        low,
        high,
        color=colour,
        alpha=0.2,
        linewidth=0,
        step="pre" if stepped else None,
    )
    axes.plot(
        tokens, cost, color=colour, drawstyle="steps-pre" if stepped else "default"
    )
    text = f"context {stairs.context:,}"
    return End(float(tokens[-1]), float(cost[-1]), text, colour)
