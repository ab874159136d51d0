"""The anchor over the run: what moved, and what pairing with a reference removed."""

from collections.abc import Iterable

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evict_profile.report.html import Markup
from evict_profile.report.plotting import End, label_ends, percent_y, title_y
from evict_profile.report.style import ACCENT, BAD, INK, PAPER, QUIET, SECOND, draw
from evict_profile.report.view import View


def drift(view: View) -> Markup:
    """Anchor latencies in order, the A/A band behind; raw clock and reference below."""
    rows = view.anchor_rows
    paired = has_reference(view)

    def paint(figure: Figure) -> None:
        panels = figure.subplots(1 + paired, 1, sharex=True, squeeze=False).ravel()
        _latency(panels[0], rows, view.table.provenance.aa_floor)
        if paired:
            _raw(panels[1], rows)
            panels[1].set_ylim(_shared(panels))
            panels[0].set_ylim(_shared(panels))
        _events(panels[0], view.timed)
        panels[-1].set_xlabel("samples measured before it")

    return draw("drift", "anchor over the run", paint, 9.6, 2.5 + 1.9 * paired)


def has_reference(view: View) -> bool:
    """Whether the clock was paired with a reference."""
    return bool(view.timed["reference_us"].notna().any())


def _latency(axes: Axes, rows: pd.DataFrame, floor: float) -> None:
    relative = _relative(rows["latency_us"])
    axes.axhspan(-floor, floor, color=QUIET, alpha=0.16, linewidth=0)
    axes.axhline(0.0, color=INK, linewidth=0.8)
    _line(axes, relative, ACCENT)
    percent_y(axes)
    title_y(axes, "anchor latency, against its median")
    axes.text(
        1.01,
        floor,
        f"A/A floor ±{floor:.1%}",
        transform=axes.get_yaxis_transform(),
        color=QUIET,
        va="center",
    )


def _raw(axes: Axes, rows: pd.DataFrame) -> None:
    axes.axhline(0.0, color=INK, linewidth=0.8)
    ends = []
    for column, name, colour in (
        ("clock_us", "raw clock", SECOND),
        ("reference_us", "reference", QUIET),
    ):
        relative = _relative(rows[column])
        _line(axes, relative, colour)
        ends.append((float(relative.iloc[-1]), name, colour))
    percent_y(axes)
    edge = axes.get_xlim()[1]
    axes.set_xlim(right=edge)
    label_ends(axes, [End(edge, *end) for end in ends], gap=0.11)
    title_y(axes, "the same samples before pairing, each against its median")


def _events(axes: Axes, timed: pd.DataFrame) -> None:
    marked = timed[timed["events"] != ""]
    for place in marked.index:
        axes.plot(
            [place],
            [0.0],
            marker="v",
            color=BAD,
            markersize=5,
            transform=axes.get_xaxis_transform(),
            clip_on=False,
        )


def _line(axes: Axes, relative: pd.Series, colour: str) -> None:
    x, y = relative.index.to_numpy(), relative.to_numpy()
    axes.plot(x, y, "o-", color=colour, linewidth=1.1, markeredgecolor=PAPER)


def _relative(values: pd.Series) -> pd.Series:
    return values / values.median() - 1.0


def _shared(panels: Iterable[Axes]) -> tuple[float, float]:
    limits = [limit for axes in panels for limit in axes.get_ylim()]
    return min(limits), max(limits)
