"""Axes, lines and labels that all drawings share."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, PercentFormatter
from scipy.optimize import isotonic_regression

from evict_profile.report.numbers import US, Unit
from evict_profile.report.style import HOVER, INK, PAPER, RAMP
from evict_profile.stats import Estimate, Floats

MAX_TICKS = 9
"""On a log axis of measured values."""

FINE_TICKS_BELOW = 12.0
"""Range below which a log axis has more ticks."""


def log_axis(axes: Axes, values: Iterable[float], label: str, which: str = "x") -> None:
    """A log axis with ticks at measured values only."""
    ordered, kept = sorted(set(values)), list[float]()
    apart = (ordered[-1] / ordered[0]) ** (1.0 / MAX_TICKS)
    for value in ordered:
        if not kept or value / kept[-1] >= apart:
            kept.append(value)
    axes.set(**{f"{which}scale": "log", f"{which}label": label})
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_ticks(kept, [f"{value:g}" for value in kept])
    axis.set_minor_locator(NullLocator())


def ms_axis(axes: Axes, which: str = "y") -> None:
    """A log axis of microseconds, in round milliseconds; call it after drawing."""
    axes.set(**{f"{which}scale": "log"})
    axis = axes.yaxis if which == "y" else axes.xaxis
    low, high = axis.get_view_interval()
    fine = high / low < FINE_TICKS_BELOW
    subs = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if fine else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(10.0, subs=subs))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda us, _: f"{us / 1e3:,g}"))


def percent_y(axes: Axes) -> None:
    axes.axhline(0.0, color=INK, linewidth=0.8)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def shades(values: Iterable[int]) -> dict[int, str]:
    ordered = sorted(set(values))
    index = np.linspace(0, len(RAMP) - 1, len(ordered)).round().astype(int)
    return {value: RAMP[i] for value, i in zip(ordered, index, strict=True)}


def colour_bar(
    axes: Axes, values: Sequence[float], label: str, unit: Unit = US
) -> Callable[[float], str]:
    """Draw a bar of shades on a log scale; return the shade of a value."""
    edges = np.geomspace(min(values), 1.001 * max(values), len(RAMP) + 1)
    scale = ScalarMappable(BoundaryNorm(edges, len(RAMP)), ListedColormap(RAMP))
    ticks = FuncFormatter(lambda value, _: unit.bare(value))
    bar = axes.figure.colorbar(scale, ax=axes, format=ticks, ticks=edges[::2])
    bar.set_label(label)
    bar.outline.set_visible(False)
    return lambda value: RAMP[int(np.searchsorted(edges[1:-1], value, "right"))]


def dot(axes: Axes, x: float, y: Estimate, colour: str, text: str) -> None:
    if y.known:
        axes.vlines(x, y.low, y.high, color=colour, linewidth=1.1)
    face, edge = (colour, PAPER) if y.known else (PAPER, colour)
    mark(axes, x, y.value, text, markerfacecolor=face, markeredgecolor=edge)


def mark(
    axes: Axes, x: float, y: float, text: str, marker: str = "o", **look: Any
) -> None:
    """A point that shows `text` where a pointer rests on it."""
    axes.plot([x], [y], marker, gid=HOVER + text, **look)


class End(NamedTuple):
    x: float
    y: float
    text: str
    colour: str


def line(
    axes: Axes,
    x: Sequence[float] | Floats,
    y: Sequence[float] | Floats,
    name: str,
    colour: str,
    band: tuple[Floats, Floats] | None = None,
    **look: Any,
) -> End:
    if band:
        steps = look.get("drawstyle") == "steps-pre"
        step: Literal["pre"] | None = "pre" if steps else None
        axes.fill_between(x, *band, color=colour, step=step, alpha=0.2, linewidth=0)
    axes.plot(x, y, color=colour, **look)
    return End(float(x[-1]), float(y[-1]), name, colour)


def label_ends(axes: Axes, ends: Iterable[End], gap: float = 0.055) -> None:
    """Name lines at their ends, `gap` of the axis' height apart."""
    scale = axes.yaxis.get_transform()
    low, high = scale.transform(np.array(axes.get_ylim()))
    for x, group in groupby(sorted(ends), key=lambda end: end.x):
        members = list(group)
        wanted = scale.transform(np.array([end.y for end in members]))
        spaced = spread_apart(wanted.tolist(), gap * float(high - low))
        heights = scale.inverted().transform(np.array(spaced)).tolist()
        look: dict[str, Any] = {"xytext": (7, 0), "textcoords": "offset points"}
        for end, height in zip(members, heights, strict=True):
            look |= {"color": end.colour, "va": "center", "annotation_clip": False}
            axes.annotate(end.text, (x, height), **look)


def spread_apart(heights: Sequence[float], gap: float) -> list[float]:
    steps = gap * np.arange(len(heights))
    closed = isotonic_regression(np.asarray(heights) - steps).x
    spaced: list[float] = (closed + steps).tolist()
    return spaced
