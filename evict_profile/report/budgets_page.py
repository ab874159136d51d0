"""A study of expert budgets as a page and on a terminal: what to run comes first."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator
from rich.console import Console

from evict_profile.budgets.frontier import Front, Point
from evict_profile.budgets.schema import DEPLOYABLE, MASS, NONE, ORACLE
from evict_profile.budgets.study import BudgetStudy
from evict_profile.report.numbers import spread
from evict_profile.report.plotting import note, round_axis
from evict_profile.report.render import render, show
from evict_profile.report.style import (
    ACCENT,
    BAD,
    INK,
    PAPER,
    QUIET,
    RAMP,
    SECOND,
    canvas,
    inline_svg,
)
from evict_profile.report.tables import Rows
from evict_profile.stats import RESAMPLES, Floats

COLOURS = (ACCENT, BAD, SECOND, RAMP[0], INK)
MARKERS = ("o", "v", "s", "D", "P", "^", "<", "h", ">", "p")
LOOKS = {
    **{
        rule: (COLOURS[i % len(COLOURS)], MARKERS[i], "-" if i < len(COLOURS) else ":")
        for i, rule in enumerate(DEPLOYABLE)
    },
    ORACLE: (QUIET, "X", "--"),
}
"""Colour, marker and line of each rule; the oracle is dashed: nobody can run it."""
MIN_KL = 1e-4
"""What is smaller is drawn here, at the edge of a log axis."""

Columns = dict[str, Callable[[Point], object]]
QUALITY: Columns = {
    "setting": lambda p: p.setting.name,
    "tokens/s": lambda p: f"{p.tokens_per_s.value:.1f}",
    "counts x none": lambda p: spread(p.earned),
    "accept length": lambda p: f"{p.committed.value:.3f}",
    "x none": lambda p: spread(p.accept_ratio, ".3f"),
    "experts": lambda p: f"{p.union.value:.1f}",
    "KL, given": lambda p: spread(p.given.kl, ".5f"),
    "agreement, given": lambda p: spread(p.given.agreement, ".2%"),
    "excess loss, given": lambda p: spread(p.given.excess_loss, "+.4f"),
}
DECODED: Columns = {
    "setting": lambda p: p.setting.name,
    "KL, decoded": lambda p: spread(p.decoded.kl, ".5f"),
    "agreement, decoded": lambda p: spread(p.decoded.agreement, ".2%"),
    "excess loss, decoded": lambda p: spread(p.decoded.excess_loss, "+.4f"),
    "excess loss over none, given": lambda p: spread(p.over_none, "+.4f"),
}
PRICES: Columns = {
    "setting": lambda p: p.setting.name,
    "predicted, us": lambda p: spread(p.predicted_us, ",.0f"),
    "ran, us": lambda p: spread(p.verify_us, ",.0f"),
    "predicted over ran": lambda p: f"{p.predicted_us.value / p.verify_us.value:.3f}",
    "experts": lambda p: spread(p.union, ".1f"),
    "routing, us": lambda p: f"{p.setting.routing_us:,.0f}",
    "whole step, us": lambda p: spread(p.step_us, ",.0f"),
    "x none": lambda p: spread(p.step_ratio, ".3f"),
}


def page(study: BudgetStudy) -> str:
    """The whole document."""
    return render(
        "budgets.html.j2",
        title="What does an expert budget buy, and what does it cost?",
        study=study,
        drawing=speed_by_divergence,
        points=partial(_rows, QUALITY),
        decoded=partial(_rows, DECODED),
        prices=partial(_rows, PRICES),
        resamples=RESAMPLES,
    )


def show_study(console: Console, study: BudgetStudy) -> None:
    """The advice, and the numbers of all workloads together."""
    points = _rows(QUALITY, study.whole.front)
    show(console, "budgets.txt.j2", study=study, points=points)


def _rows(columns: Columns, front: Front) -> Rows:
    """Rules in the order in which they first stand, small budgets first."""
    rules = dict.fromkeys(point.setting.rule for point in front.points)
    return Rows.of([point for rule in rules for point in front.of(rule)], columns)


def speed_by_divergence(front: Front, name: str) -> Markup:
    """Expected speed over none against KL on given text, a line a rule."""
    with canvas(9.6, 4.6) as figure:
        axes = figure.subplots()
        for rule in LOOKS:
            if points := front.of(rule):
                _line(axes, rule, points)
        for point in {*front.of(MASS)[:1], *front.of(MASS)[-1:]}:
            x, text = max(point.given.kl.value, MIN_KL), f"B = {point.setting.budget}"
            note(axes, text, x, point.earned.value, LOOKS[MASS][0], (6, -11))
        axes.axhline(1.0, color=QUIET, linewidth=0.8)
        left = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        axes.annotate(NONE, (0.0, 1.0), xytext=(3, -11), color=QUIET, **left)  # type: ignore[arg-type]
        round_axis(axes, "x")
        axes.xaxis.set_major_locator(LogLocator(10.0, subs=(1.0, 3.0)))
        axes.set_xlabel("KL to the unbudgeted target on given text, nats a token")
        axes.set_title("expected speed over no budget")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    label = f"expected speed against divergence, {front.workload}"
    return inline_svg(figure, name, label)


def _line(axes: Axes, rule: str, points: Sequence[Point]) -> None:
    """A rule's points, joined, with their intervals."""
    colour, marker, line = LOOKS[rule]
    kl, speed = (
        np.array([(each.value, each.low, each.high) for each in estimates]).T
        for estimates in ([p.given.kl for p in points], [p.earned for p in points])
    )
    kl = np.maximum(kl, MIN_KL)
    axes.errorbar(
        kl[0],
        speed[0],
        xerr=_reach(*kl),
        yerr=_reach(*speed),
        marker=marker,
        linestyle=line,
        color=colour,
        label=rule,
        linewidth=1.2,
        elinewidth=1.1,
        markersize=5.5,
        markeredgecolor=PAPER,
        markeredgewidth=0.6,
    )


def _reach(value: Floats, low: Floats, high: Floats) -> Floats:
    """How far intervals go below and above, [2, points]; nan where unbounded."""
    ends = np.stack([value - low, high - value])
    return np.where(np.isfinite(ends), ends, np.nan)
