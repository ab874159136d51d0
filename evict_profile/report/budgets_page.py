"""A study of expert budgets as a page and on a terminal: what to run comes first."""

from collections.abc import Callable, Sequence

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator
from rich.console import Console

from evict_profile.budgets.frontier import Front, Point, RuleComparison
from evict_profile.budgets.schema import DEPLOYABLE, MASS, NONE, ORACLE
from evict_profile.budgets.study import BudgetStudy, StudyPart, Unseen
from evict_profile.io import say
from evict_profile.replay.verdict import percent
from evict_profile.report.numbers import spread
from evict_profile.report.plotting import log_axis, note, time_axis, whisker
from evict_profile.report.render import render
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
from evict_profile.report.tables import Rows, print_rows
from evict_profile.stats import RESAMPLES, Estimate

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

Of = Callable[[Point], Estimate]


def page(study: BudgetStudy) -> str:
    """The whole document."""
    return render(
        "budgets.html.j2",
        title="What does an expert budget buy, and what does it cost?",
        study=study,
        parts=[_part(part, f"part{i}") for i, part in enumerate(study.parts)],
        prices=_price_rows(study.whole.front),
        unseen=unseen(study.unseen) if study.unseen else "",
        provenance=_provenance_rows(study),
        resamples=RESAMPLES,
    )


def show_study(console: Console, study: BudgetStudy) -> None:
    """The advice, what compares rules, and the numbers of all workloads together."""
    whole = study.whole
    say(console, whole.advice.message)
    say(console, f"Required is {whole.advice.required}, at the worse end.")
    if study.unseen:
        say(
            console,
            f"Chosen on every other prompt, on the rest: {unseen(study.unseen)}.",
        )
    say(console, f"Pareto front: {', '.join(whole.pareto) or 'none'}")
    front = whole.front
    title = f"{front.workload}, {front.prompts} prompts, {front.tokens} given tokens"
    print_rows(console, _point_rows(front), title)
    say(console, rounding(front.none))
    for part in study.parts[1:]:
        say(console, f"{part.front.workload}: {part.advice.message}")
    for caveat in study.caveats:
        say(console, f"note: {caveat}")


def _part(part: StudyPart, name: str) -> dict[str, object]:
    """One workload, or all: drawings and rows."""
    front = part.front
    return {
        "front": front,
        "advice": part.advice,
        "pareto": part.pareto,
        "speed": speed_by_divergence(front, f"{name}-front"),
        "quality": quality_by_budget(front, f"{name}-budgets"),
        "points": _point_rows(front),
        "decoded": _decoded_rows(front),
        "rounding": rounding(front.none),
        "compared": _compared_rows(front.comparisons),
    }


def unseen(judged: Unseen) -> str:
    """How advice holds on prompts that it was not chosen on."""
    point, given = judged.point, judged.point.given
    return (
        f"{point.setting.name} at {spread(point.earned)} of the speed, KL "
        f"{spread(given.kl, '.4f')} nats, agreement {spread(given.agreement, '.2%')}; "
        f"what is required is {'kept' if judged.kept else 'not surely kept'}"
    )


def by_rule(front: Front) -> list[Point]:
    """Points, rules in the order in which they first stand, small budgets first."""
    rules = dict.fromkeys(point.setting.rule for point in front.points)
    return [point for rule in rules for point in front.of(rule)]


def rounding(none: Point) -> str:
    """What the unbudgeted setting, against its own clean forward, says of rounding."""
    given = none.given
    return (
        "Check: without a budget the same forward differs by rounding and the cache's "
        f"order only: KL {given.kl.value:.1e} nats, agreement "
        f"{given.agreement.value:.2%}, loss {given.excess_loss.value:+.1e} nats."
    )


def _point_rows(front: Front) -> Rows:
    return Rows.of(
        by_rule(front),
        {
            "setting": lambda p: p.setting.name,
            "tokens/s": lambda p: f"{p.tokens_per_s.value:.1f}",
            "counts x none": lambda p: spread(p.earned),
            "accept length": lambda p: f"{p.committed.value:.3f}",
            "x none": lambda p: spread(p.accept_ratio, ".3f"),
            "experts": lambda p: f"{p.union.value:.1f}",
            "KL, given": lambda p: spread(p.given.kl, ".5f"),
            "agreement, given": lambda p: spread(p.given.agreement, ".2%"),
            "excess loss, given": lambda p: spread(p.given.excess_loss, "+.4f"),
        },
    )


def _decoded_rows(front: Front) -> Rows:
    return Rows.of(
        by_rule(front),
        {
            "setting": lambda p: p.setting.name,
            "KL, decoded": lambda p: spread(p.decoded.kl, ".5f"),
            "agreement, decoded": lambda p: spread(p.decoded.agreement, ".2%"),
            "excess loss, decoded": lambda p: spread(p.decoded.excess_loss, "+.4f"),
            "excess loss over none, given": lambda p: spread(p.over_none, "+.4f"),
        },
    )


def _compared_rows(comparisons: Sequence[RuleComparison]) -> Rows:
    return Rows.of(
        comparisons,
        {
            "rule": lambda c: c.name,
            "experts": lambda c: c.budget,
            "KL, given": lambda c: percent(c.kl),
            "speed": lambda c: percent(c.speed),
            "accept length": lambda c: percent(c.accept),
        },
    )


def _price_rows(front: Front) -> Rows:
    return Rows.of(
        by_rule(front),
        {
            "setting": lambda p: p.setting.name,
            "predicted, us": lambda p: spread(p.predicted_us, ",.0f"),
            "ran, us": lambda p: spread(p.verify_us, ",.0f"),
            "predicted over ran": lambda p: (
                f"{p.predicted_us.value / p.verify_us.value:.3f}"
            ),
            "experts": lambda p: spread(p.union, ".1f"),
            "routing, us": lambda p: f"{p.setting.routing_us:,.0f}",
            "whole step, us": lambda p: spread(p.step_us, ",.0f"),
            "x none": lambda p: spread(p.step_ratio, ".3f"),
        },
    )


def _provenance_rows(study: BudgetStudy) -> Rows:
    about = study.about
    low, high = (100.0 * (share - 1.0) for share in study.price_spread)
    drafts = f"{about.depth} levels, {about.topk} nodes each, {about.nodes} verified"
    costs = f"95 % within {low:+.1f} to {high:+.1f} %, beside the intervals shown"
    cells = [
        ("recording", study.recording),
        ("drafts", drafts),
        ("recorded on", f"{about.device}, {about.engine} {about.engine_version}"),
        ("cost table", f"{study.table}, sha256 {study.sha256[:12]}"),
        ("table's costs", costs),
        *(("note", caveat) for caveat in study.caveats),
    ]
    return Rows(("what", "which"), cells)


def speed_by_divergence(front: Front, name: str) -> Markup:
    """Expected speed over none against KL on given text, a line a rule."""
    with canvas(9.6, 4.6) as figure:
        axes = figure.subplots()
        for rule, (colour, *_) in LOOKS.items():
            x, y = [], []
            for point in front.of(rule):
                kl, speed = _at_least(point.given.kl, MIN_KL), point.earned
                whisker(axes, speed.value, kl.low, kl.high, colour, across=True)
                whisker(axes, kl.value, speed.low, speed.high, colour)
                x.append(kl.value)
                y.append(speed.value)
            _line(axes, x, y, rule)
        _label_budgets(axes, front.of(MASS))
        axes.axhline(1.0, color=QUIET, linewidth=0.8)
        left = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        axes.annotate(NONE, (0.0, 1.0), xytext=(3, -11), color=QUIET, **left)  # type: ignore[arg-type]
        time_axis(axes, "x")
        axes.xaxis.set_major_locator(LogLocator(10.0, subs=(1.0, 3.0)))
        axes.set_xlabel("KL to the unbudgeted target on given text, nats a token")
        axes.set_title("expected speed over no budget")
        _key(axes)
    label = f"expected speed against divergence, {front.workload}"
    return inline_svg(figure, name, label)


def quality_by_budget(front: Front, name: str) -> Markup:
    """Accept length over none, and what disagrees on given text, by budget."""
    with canvas(9.6, 4.0) as figure:
        left, right = figure.subplots(1, 2)
        for number, rule in enumerate(LOOKS):
            shift = DODGE ** (number - len(LOOKS) // 2)
            _by_budget(left, front.of(rule), lambda p: p.accept_ratio, rule, shift)
            _by_budget(right, front.of(rule), disagreement, rule, shift)
        time_axis(right)
        right.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.3g}"))
        left.axhline(1.0, color=QUIET, linewidth=0.8)
        for axes in (left, right):
            budgets = [point.setting.budget for point in front.points]
            log_axis(axes, budgets, "experts a layer may activate, B")
        left.set_title("accept length over no budget")
        right.set_title("share of given tokens that disagree")
        _key(right)
    label = f"accept length and disagreement by budget, {front.workload}"
    return inline_svg(figure, name, label)


def _by_budget(
    axes: Axes, points: Sequence[Point], of: Of, rule: str, shift: float
) -> None:
    x = [shift * point.setting.budget for point in points]
    y = [of(point) for point in points]
    for at, estimate in zip(x, y, strict=True):
        whisker(axes, at, estimate.low, estimate.high, LOOKS[rule][0])
    _line(axes, x, [estimate.value for estimate in y], rule)


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


def _label_budgets(axes: Axes, points: Sequence[Point]) -> None:
    """The least and the largest budget of a line; others have them in this order."""
    for point in {*points[:1], *points[-1:]}:
        x, y = max(point.given.kl.value, MIN_KL), point.earned.value
        text, colour = f"B = {point.setting.budget}", LOOKS[point.setting.rule][0]
        note(axes, text, x, y, colour, (6, -11))


def disagreement(point: Point) -> Estimate:
    """Share of given tokens where another token is likeliest, as a log axis has it."""
    own = point.given.agreement
    share = Estimate(1.0 - own.value, 1.0 - own.high, 1.0 - own.low)
    return _at_least(share, MIN_SHARE)


def _at_least(estimate: Estimate, least: float) -> Estimate:
    """Where it stands on a log axis."""
    ends = (estimate.value, estimate.low, estimate.high)
    return Estimate(*(max(end, least) for end in ends))


def _key(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
