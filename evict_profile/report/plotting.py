"""Habits that all drawings share: ticks at measured values, labels at lines' ends."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
from scipy.optimize import isotonic_regression

from evict_profile.report.style import INK, PAPER, RAMP

MIN_TICK_RATIO = 1.18
"""Ticks on a log axis are dropped when nearer than this, or they overlap."""

FINE_TICKS_BELOW = 12.0
"""Largest over smallest, under which a log axis has room for more ticks."""

_PLAIN = FuncFormatter(lambda value, _: f"{value:g}")
_PERCENT = FuncFormatter(lambda value, _: f"{100.0 * value:+g}%" if value else "0%")


def log_axis(axes: Axes, values: Iterable[float], label: str, which: str = "x") -> None:
    """A log2 axis with ticks at measured values only."""
    kept: list[float] = []
    for value in sorted(set(values)):
        if not kept or value / kept[-1] > MIN_TICK_RATIO:
            kept.append(value)
    axes.set(**{f"{which}scale": "log", f"{which}label": label})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(FixedLocator(kept))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(_PLAIN)


def time_axis(axes: Axes, which: str = "y") -> None:
    """A log axis with ticks at round numbers; call it when the data are drawn."""
    axes.set(**{f"{which}scale": "log"})
    axis = axes.yaxis if which == "y" else axes.xaxis
    low, high = axis.get_view_interval()
    fine = high / low < FINE_TICKS_BELOW
    subs = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if fine else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(10.0, subs=subs))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(_PLAIN)


def union_axis(axes: Axes, unions: Iterable[int]) -> None:
    """Unions from 0 on the x axis, and a y axis from 0."""
    axes.set(xlabel="union U, experts", xticks=[0, *apart(unions)])
    axes.set_xlim(left=0.0)
    axes.set_ylim(bottom=0.0)


def percent_y(axes: Axes) -> None:
    """Relative values on the y axis, as percentages, and a line at zero."""
    axes.axhline(0.0, color=INK, linewidth=0.8)
    axes.yaxis.set_major_formatter(_PERCENT)


def apart(values: Iterable[int]) -> list[int]:
    """The largest value and those below it that leave room for a tick's number."""
    ordered = sorted(values)
    kept: list[int] = []
    for value in reversed(ordered):
        if not kept or kept[-1] - value >= 0.08 * ordered[-1]:
            kept.append(value)
    return kept


def bars_across(axes: Axes) -> None:
    """Bars named on the left, the first on top, with upright grid lines."""
    axes.tick_params(axis="y", labelcolor=INK)
    axes.invert_yaxis()
    axes.set_xlim(left=0.0)
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)


def shades(values: Iterable[int]) -> dict[int, str]:
    """A shade for each value, from small to large, as far apart as they can be."""
    ordered = sorted(set(values))
    index = np.linspace(0, len(RAMP) - 1, len(ordered)).round().astype(int)
    return {value: RAMP[i] for value, i in zip(ordered, index, strict=True)}


def whisker(
    axes: Axes, at: float, low: float, high: float, colour: str, across: bool = False
) -> None:
    """An interval as a line, upright or across; none where it is unbounded."""
    if np.isfinite(low) and np.isfinite(high):
        ends, fixed = [low, high], [at, at]
        x, y = (ends, fixed) if across else (fixed, ends)
        axes.plot(x, y, color=colour, linewidth=1.1)


def dot(axes: Axes, x: float, y: float, colour: str) -> None:
    """One point, ringed so that neighbours can be told apart."""
    (mark,) = axes.plot([x], [y], "o", color=colour, markersize=6)
    mark.set(markeredgecolor=PAPER, markeredgewidth=0.6)


def key(axes: Axes, colours: dict[int, str], title: str, x: float) -> None:
    """Name shades beside the drawing, `x` axis widths from its left."""
    dots = [Line2D([], [], marker="o", linestyle="", color=c) for c in colours.values()]
    names = [str(value) for value in colours]
    axes.legend(dots, names, title=title, loc="center left", bbox_to_anchor=(x, 0.5))


class End(NamedTuple):
    """The right end of a line, in data coordinates, and what the line is called."""

    x: float
    y: float
    text: str
    colour: str


def label_ends(axes: Axes, ends: Iterable[End], gap: float = 0.055) -> None:
    """Name lines at their ends; names at one x keep `gap` of the axis' height apart."""
    scale = axes.yaxis.get_transform()
    low, high = scale.transform(np.array(axes.get_ylim()))
    for x, group in groupby(sorted(ends), key=lambda end: end.x):
        members = list(group)
        wanted = scale.transform(np.array([end.y for end in members]))
        spaced = spread_apart(wanted.tolist(), gap * float(high - low))
        heights = scale.inverted().transform(np.array(spaced)).tolist()
        for end, height in zip(members, heights, strict=True):
            note(axes, end.text, x, height, end.colour, (7, 0), va="center")


def spread_apart(heights: Sequence[float], gap: float) -> list[float]:
    """Increasing heights moved as little as squares allow to lie `gap` apart."""
    steps = gap * np.arange(len(heights))
    closed = isotonic_regression(np.asarray(heights) - steps).x
    spaced: list[float] = (closed + steps).tolist()
    return spaced


def note(
    axes: Axes,
    text: str,
    x: float,
    y: float,
    colour: str,
    offset: tuple[float, float],
    **look: Any,
) -> None:
    """A word beside a point; `offset` in points."""
    axes.annotate(
        text,
        (x, y),
        xytext=offset,
        textcoords="offset points",
        color=colour,
        annotation_clip=False,
        **look,
    )
