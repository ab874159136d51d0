"""A study of expert budgets as a page and on a terminal: what to run comes first."""

from collections.abc import Callable, Sequence

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator
from rich.console import Console

from evict_profile.budgets.frontier import Front, Point
from evict_profile.budgets.schema import DEPLOYABLE, MASS, NONE, ORACLE
from evict_profile.budgets.study import BudgetStudy, StudyPart
from evict_profile.report.numbers import spread
from evict_profile.report.plotting import log_axis, note, round_axis
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
from evict_profile.stats import RESAMPLES, Estimate, Floats

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
MIN_KL, MIN_SHARE = 1e-4, 1e-3
"""What is smaller is drawn here, at the edge of a log axis."""
DODGE = 1.012
"""Rules stand this far apart at one budget, as a ratio: intervals can be seen."""

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
        parts=[_part(part, f"part{i}") for i, part in enumerate(study.parts)],
        prices=_rows(study.whole.front, PRICES),
        provenance=_provenance_rows(study),
        resamples=RESAMPLES,
    )


def show_study(console: Console, study: BudgetStudy) -> None:
    """The advice, and the numbers of all workloads together."""
    points = _rows(study.whole.front, QUALITY)
    show(console, "budgets.txt.j2", study=study, points=points)


def _part(part: StudyPart, name: str) -> dict[str, object]:
    """One workload, or all: drawings and rows."""
    front = part.front
    return {
        "front": front,
        "advice": part.advice,
        "speed": speed_by_divergence(front, f"{name}-front"),
        "quality": quality_by_budget(front, f"{name}-budgets"),
        "points": _rows(front, QUALITY),
        "decoded": _rows(front, DECODED),
    }


def _rows(front: Front, columns: Columns) -> Rows:
    """Rules in the order in which they first stand, small budgets first."""
    rules = dict.fromkeys(point.setting.rule for point in front.points)
    return Rows.of([point for rule in rules for point in front.of(rule)], columns)


def _provenance_rows(study: BudgetStudy) -> Rows:
    about = study.about
    low, high = (100.0 * (share - 1.0) for share in study.price_spread)
    drafts = f"{about.depth} levels, {about.topk} nodes each, {about.nodes} verified"
    within = f"{study.price_percent} % within {low:+.1f} to {high:+.1f} %"
    cells = [
        ("recording", study.recording),
        ("drafts", drafts),
        ("recorded on", f"{about.device}, {about.engine} {about.engine_version}"),
        ("cost table", f"{study.table}, sha256 {study.sha256[:12]}"),
        ("table's costs", f"{within}, beside the intervals shown"),
        *(("note", caveat) for caveat in study.caveats),
    ]
    return Rows(("what", "which"), cells)


def speed_by_divergence(front: Front, name: str) -> Markup:
    """Expected speed over none against KL on given text, a line a rule."""
    with canvas(9.6, 4.6) as figure:
        axes = figure.subplots()
        for rule in LOOKS:
            points = front.of(rule)
            divergences = [_at_least(point.given.kl, MIN_KL) for point in points]
            _line(axes, rule, divergences, [point.earned for point in points])
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
        _legend(axes)
    label = f"expected speed against divergence, {front.workload}"
    return inline_svg(figure, name, label)


def quality_by_budget(front: Front, name: str) -> Markup:
    """Accept length over none, and what disagrees on given text, by budget."""
    with canvas(9.6, 4.0) as figure:
        left, right = figure.subplots(1, 2)
        for number, rule in enumerate(LOOKS):
            shift, points = DODGE ** (number - len(LOOKS) // 2), front.of(rule)
            budgets = [shift * point.setting.budget for point in points]
            at = [Estimate(budget, budget, budget) for budget in budgets]
            _line(left, rule, at, [point.accept_ratio for point in points])
            _line(right, rule, at, [disagreement(point) for point in points])
        round_axis(right)
        right.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.3g}"))
        left.axhline(1.0, color=QUIET, linewidth=0.8)
        for axes in (left, right):
            measured = [point.setting.budget for point in front.points]
            log_axis(axes, measured, "experts a layer may activate, B")
        left.set_title("accept length over no budget")
        right.set_title("share of given tokens that disagree")
        _legend(right)
    label = f"accept length and disagreement by budget, {front.workload}"
    return inline_svg(figure, name, label)


def disagreement(point: Point) -> Estimate:
    """Share of given tokens where another token is likeliest, as a log axis has it."""
    own = point.given.agreement
    share = Estimate(1.0 - own.value, 1.0 - own.high, 1.0 - own.low)
    return _at_least(share, MIN_SHARE)


def _at_least(estimate: Estimate, least: float) -> Estimate:
    """Where it stands on a log axis."""
    ends = (estimate.value, estimate.low, estimate.high)
    return Estimate(*(max(end, least) for end in ends))


def _line(axes: Axes, rule: str, x: Sequence[Estimate], y: Sequence[Estimate]) -> None:
    """A rule's points, joined, with their intervals."""
    if not x:
        return
    colour, marker, line = LOOKS[rule]
    axes.errorbar(
        [estimate.value for estimate in x],
        [estimate.value for estimate in y],
        xerr=_reach(x),
        yerr=_reach(y),
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


def _reach(estimates: Sequence[Estimate]) -> Floats:
    """How far intervals go below and above, [2, points]; nan where unbounded."""
    ends = np.array([(e.value - e.low, e.high - e.value) for e in estimates]).T
    return np.where(np.isfinite(ends), ends, np.nan)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
