"""Drawings of a front: speed against divergence, and quality by budget."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from evict_profile.budgets.front import Front, Point
from evict_profile.budgets.settings import DEPLOYABLE, MASS, NONE, ORACLE
from evict_profile.report.html import Markup
from evict_profile.report.plotting import log_axis, time_axis, title_y
from evict_profile.report.style import (
    ACCENT,
    BAD,
    INK,
    PAPER,
    QUIET,
    RAMP,
    SECOND,
    draw,
)
from evict_profile.stats import Estimate

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
SMALLEST_KL, SMALLEST_SHARE = 1e-4, 1e-3
"""What is smaller is drawn here, at the edge of a log axis."""
DODGE = 1.012
"""Rules stand this far apart at one budget, as a ratio: intervals can be seen."""

Of = Callable[[Point], Estimate]


def speed_by_divergence(front: Front, name: str) -> Markup:
    """Expected speed over none against KL on given text, a line a rule."""

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for rule in LOOKS:
            _crosses(axes, front.of(rule), rule)
        _label_ends(axes, front.of(MASS))
        _mark_none(axes)
        time_axis(axes, "x")
        axes.xaxis.set_major_locator(LogLocator(10.0, subs=(1.0, 3.0)))
        axes.set_xlabel("KL to the unbudgeted target on given text, nats a token")
        title_y(axes, "expected speed over no budget")
        _key(axes)

    says = f"expected speed against divergence, {front.workload}"
    return draw(name, says, paint, 9.6, 4.6)


def by_budget(front: Front, name: str) -> Markup:
    """Accept length over none, and what disagrees on given text, by budget."""

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for place, rule in enumerate(LOOKS):
            points, shift = front.of(rule), DODGE ** (place - len(LOOKS) // 2)
            _whiskers(left, points, lambda point: point.accept_ratio, rule, shift)
            _whiskers(right, points, disagreement, rule, shift)
        time_axis(right)
        right.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.3g}"))
        left.axhline(1.0, color=QUIET, linewidth=0.8)
        for axes in (left, right):
            budgets = [point.setting.budget for point in front.points]
            log_axis(axes, budgets, "experts a layer may wake, B")
        title_y(left, "accept length over no budget")
        title_y(right, "share of given tokens that disagree")
        _key(right)

    says = f"accept length and disagreement by budget, {front.workload}"
    return draw(name, says, paint, 9.6, 4.0)


def _crosses(axes: Axes, points: Sequence[Point], rule: str) -> None:
    """A rule's line with intervals in both directions."""
    found = [_at_least(point.given.kl, SMALLEST_KL) for point in points]
    for point, kl in zip(points, found, strict=True):
        speed, colour = point.earned, LOOKS[rule][0]
        if kl.known:
            axes.plot([kl.low, kl.high], [speed.value] * 2, color=colour, linewidth=0.8)
        if speed.known:
            ends = [speed.low, speed.high]
            axes.plot([kl.value] * 2, ends, color=colour, linewidth=0.8)
    x, y = [kl.value for kl in found], [point.earned.value for point in points]
    _line(axes, x, y, rule)


def _whiskers(
    axes: Axes, points: Sequence[Point], of: Of, rule: str, shift: float
) -> None:
    """A rule's line with intervals upright."""
    x, found = [shift * p.setting.budget for p in points], [of(p) for p in points]
    for place, estimate in zip(x, found, strict=True):
        if estimate.known:
            ends = [estimate.low, estimate.high]
            axes.plot([place] * 2, ends, color=LOOKS[rule][0], linewidth=0.8)
    _line(axes, x, [estimate.value for estimate in found], rule)


def _line(axes: Axes, x: Sequence[float], y: Sequence[float], rule: str) -> None:
    if not x:
        return
    colour, marker, line = LOOKS[rule]
    axes.plot(
        x,
        y,
        marker=marker,
        linestyle=line,
        color=colour,
        label=rule,
        linewidth=1.2,
        markersize=5.5,
        markeredgecolor=PAPER,
        markeredgewidth=0.6,
    )


def _label_ends(axes: Axes, points: Sequence[Point]) -> None:
    """The least and the largest budget of a line; others have them in this order."""
    for point in {*points[:1], *points[-1:]}:
        place = (max(point.given.kl.value, SMALLEST_KL), point.earned.value)
        text, colour = f"B = {point.setting.budget}", LOOKS[point.setting.rule][0]
        axes.annotate(
            text, place, xytext=(6, -11), textcoords="offset points", color=colour
        )


def _mark_none(axes: Axes) -> None:
    """A level line: its divergence is rounding, off the left of a log axis."""
    axes.axhline(1.0, color=QUIET, linewidth=0.8)
    axes.annotate(
        NONE,
        (0.0, 1.0),
        xycoords=("axes fraction", "data"),
        xytext=(3, -11),
        textcoords="offset points",
        color=QUIET,
    )


def disagreement(point: Point) -> Estimate:
    """Share of given tokens where another token is likeliest, as a log axis has it."""
    own = point.given.agreement
    share = Estimate(1.0 - own.value, 1.0 - own.high, 1.0 - own.low)
    return _at_least(share, SMALLEST_SHARE)


def _at_least(estimate: Estimate, least: float) -> Estimate:
    """Where it stands on a log axis."""
    ends = (estimate.value, estimate.low, estimate.high)
    return Estimate(*(max(end, least) for end in ends))


def _key(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
