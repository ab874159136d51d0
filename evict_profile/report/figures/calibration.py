"""Drawings of a calibration: chances against shares accepted, and unions by tokens."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from evict_profile.calibrate.growth import Growth
from evict_profile.calibrate.nodes import Nodes
from evict_profile.calibrate.study import Study
from evict_profile.config import ModelSpec
from evict_profile.report.html import Markup
from evict_profile.report.plotting import (
    End,
    key,
    label_ends,
    log_axis,
    shades,
    title_y,
)
from evict_profile.report.style import ACCENT, PAPER, QUIET, SECOND, draw
from evict_profile.stats import Floats

POINTS = 10
"""Points of one depth; each promises as many acceptances."""
FEWEST_NODES = 20
SMALLEST = 0.01
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def reliability(found: Study) -> Markup:
    """Share accepted over chance by depth, before and after, on prompts held out."""
    held_out, chosen = found.calibrated.held_out, found.calibrated.chosen
    depths = range(1, int(held_out.nodes.depth.max()) + 1)
    colours = shades(depths)

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharex=True, sharey=True)
        for axes, name in ((left, "raw"), (right, chosen)):
            for depth in depths:
                own = held_out.nodes.depth == depth
                nodes, chance = held_out.nodes.take(own), held_out.chances[name][own]
                x, y = points(nodes, chance)
                _dots(axes, x, y, colours[depth])
            _chances(axes)
        title_y(left, "share accepted, over path probability")
        title_y(right, "share accepted, over calibrated chance")
        key(right, colours, title="depth", x=1.04)

    return draw("reliability", "chance and share accepted", paint, 9.6, 4.3)


def points(nodes: Nodes, chance: Floats) -> tuple[Floats, Floats]:
    """Mean chance and share accepted of bins that promise equally much.

    Bins of fewer than 20 nodes are left out, and those that nothing promised.
    """
    order = np.argsort(chance, kind="stable")
    promised = np.cumsum(chance[order])
    if not len(order) or promised[-1] <= 0.0:
        return np.empty(0), np.empty(0)
    bins = np.minimum(promised / promised[-1] * POINTS, POINTS - 1).astype(np.int64)
    count = np.bincount(bins, minlength=POINTS)
    kept = count >= FEWEST_NODES
    means = (
        np.bincount(bins, values[order], POINTS)[kept] / count[kept]
        for values in (chance, nodes.accepted.astype(np.float64))
    )
    x, y = means
    return x, y


def growth(found: Study, model: ModelSpec) -> Markup:
    """Measured against uniform growth: one request left, batches right."""
    growths = found.growths
    assert growths is not None, "there is a drawing where there are routes"
    batches = [batch for batch in growths.kept if batch > 1]

    def paint(figure: Figure) -> None:
        panels = figure.subplots(1, 2 if batches else 1, sharey=True, squeeze=False)[0]
        others = [("consecutive", growths.consecutive), ("random", growths.random)]
        _alone(panels[0], growths.kept[1], others, model)
        if batches:
            _batches(panels[1], {b: growths.kept[b] for b in batches}, model)

    return draw("growth", "experts woken by tokens verified", paint, 9.6, 4.2)


def _alone(
    axes: Axes,
    kept: Growth,
    others: Sequence[tuple[str, Growth | None]],
    model: ModelSpec,
) -> None:
    tokens = np.arange(len(kept.union))
    axes.fill_between(tokens, kept.low, kept.high, color=ACCENT, alpha=0.22, lw=0)
    axes.plot(tokens, kept.union, color=ACCENT)
    ends = [End(tokens[-1], float(kept.union[-1]), "tree", ACCENT)]
    for name, growth in others:
        if growth is not None:
            line = growth.union[: len(tokens)]
            axes.plot(tokens[: len(line)], line, color=SECOND, dashes=(4, 2))
            ends.append(End(tokens[-1], float(line[-1]), name, SECOND))
    ends.append(_uniform(axes, len(tokens) - 1, model))
    axes.set_xlabel("tokens verified, one request")
    title_y(axes, "experts a layer")
    label_ends(axes, ends)


def _batches(axes: Axes, kept: dict[int, Growth], model: ModelSpec) -> None:
    colours, ends = shades(kept), []
    for batch, growth in kept.items():
        tokens = np.arange(1, len(growth.union))
        colour, last = colours[batch], float(growth.union[-1])
        low, high = growth.low[1:], growth.high[1:]
        axes.fill_between(tokens, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(tokens, growth.union[1:], color=colour)
        ends.append(End(tokens[-1], last, f"batch {batch}", colour))
    longest = max(len(growth.union) for growth in kept.values()) - 1
    ends.append(_uniform(axes, longest, model))
    ticks = 2.0 ** np.arange(0.0, np.log2(longest) + 1e-9, 2.0)
    log_axis(axes, ticks.tolist(), "tokens verified, all requests")
    title_y(axes, "experts a layer, by batch")
    label_ends(axes, ends)


def _uniform(axes: Axes, tokens: int, model: ModelSpec) -> End:
    line = [model.uniform_union(t) for t in range(1, tokens + 1)]
    axes.plot(range(1, tokens + 1), line, color=QUIET, dashes=(1, 1.5))
    return End(tokens, line[-1], "uniform", QUIET)


def _dots(axes: Axes, x: Floats, y: Floats, colour: str) -> None:
    # A share of nothing has no place on a log axis; it is drawn at the edge.
    seen = np.maximum(y, SMALLEST)
    axes.plot(x, seen, "-o", color=colour, markeredgecolor=PAPER, markeredgewidth=0.6)


def _chances(axes: Axes) -> None:
    axes.plot([SMALLEST, 1.0], [SMALLEST, 1.0], color=QUIET, linewidth=0.9)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(SMALLEST, 1.0)
    axes.set_ylim(SMALLEST, 1.0)
    axes.tick_params(labelleft=True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator(TICKS))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
