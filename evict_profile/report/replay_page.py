"""A replay as a page and on a terminal, and the benchmark of policies."""

from collections.abc import Sequence

from markupsafe import Markup
from matplotlib.axes import Axes
from rich.console import Console

from evict_profile.bench import Timing
from evict_profile.io import say
from evict_profile.replay.compare import MIXED, Comparison, PolicyResult
from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    BEST_WIDTH,
    DEPTH_CONDITIONAL,
    GUIDED,
    ORACLE,
    RATE,
)
from evict_profile.replay.study import ReplayStudy
from evict_profile.replay.verdict import percent
from evict_profile.replay.wrong_tables import STUDIED, WrongTableStudy
from evict_profile.report.numbers import spread
from evict_profile.report.plotting import (
    End,
    bars_across,
    dot,
    label_ends,
    log_axis,
    note,
    shades,
    whisker,
)
from evict_profile.report.render import render
from evict_profile.report.style import (
    ACCENT,
    INK,
    QUIET,
    RULE,
    SECOND,
    canvas,
    inline_svg,
)
from evict_profile.report.tables import Rows, print_rows
from evict_profile.stats import RESAMPLES

LINES = (AR, RATE, DEPTH_CONDITIONAL, ORACLE)
"""Policies drawn beside the fixed widths, where they were replayed."""
COLOURS = dict(zip(STUDIED, (SECOND, QUIET, ACCENT), strict=True))
OFFSETS = dict(zip(STUDIED, (-0.22, 0.0, 0.22), strict=True))


def page(study: ReplayStudy) -> str:
    """The whole document."""
    mixed = any(
        comparison.scenario.workload == MIXED for comparison in study.comparisons
    )
    scenarios = [
        {
            "name": str(comparison.scenario),
            "folded": mixed and comparison.scenario.workload != MIXED,
            "comparison": comparison,
            "verdict": verdict,
            "bars": bars(comparison, f"bars{number}"),
            "curves": width_curves(comparison, f"widths{number}"),
        }
        for number, (comparison, verdict) in enumerate(
            zip(study.comparisons, study.verdicts, strict=True)
        )
    ]
    wrong = [each for one in study.wrong_tables for each in one.results]
    return render(
        "replay.html.j2",
        title="Does speculation pay, and does adapting?",
        study=study,
        scenarios=scenarios,
        worst=min(wrong, key=lambda each: each.over_right.value),
        losses=losses(study.wrong_tables),
        studied=STUDIED,
        baselines=(AR, BEST_WIDTH, BEST_PAIR, ORACLE),
        percent=percent,
        resamples=RESAMPLES,
        caveats=_caveats(study),
    )


def show_study(console: Console, study: ReplayStudy) -> None:
    """What to do, where, and the numbers behind it."""
    say(console, study.summary)
    for comparison, verdict in zip(study.comparisons, study.verdicts, strict=True):
        console.print()
        say(console, str(verdict))
        print_rows(console, _summary_rows(comparison))
        served = [each for each in comparison.results if each.served_by]
        best = max(served, key=lambda each: each.tokens_per_s.value, default=None)
        if best:
            say(console, f"“{best.policy}” in SGLang: {best.served_by}")
    if study.workload:
        say(console, f"the table's acceptance was learnt on {study.workload}")
    for caveat in _caveats(study):
        say(console, f"note: {caveat}")


def show_policies(console: Console, comparisons: Sequence[Comparison]) -> None:
    """Throughput over plain decoding and over the best fixed pair, by mix."""
    policies = [each.policy for each in comparisons[0].results]
    cells = [
        (policy, *(_over(each, policy) for each in comparisons)) for policy in policies
    ]
    mixes = [each.scenario.workload for each in comparisons]
    print_rows(console, Rows(("x plain decoding, x best fixed", *mixes), cells))


def _over(comparison: Comparison, policy: str) -> str:
    over = comparison.of(policy).over
    return f"{over[AR].value:.2f} {over[BEST_PAIR].value:.2f}"


def show_timings(console: Console, timings: Sequence[Timing], title: str) -> None:
    """Microseconds by size, median and 95 % interval over rounds, and over numpy's."""
    found = {(f"{e.device}, {e.batch} x {e.nodes}", e.what): _time(e) for e in timings}
    sizes, names = (list(dict.fromkeys(key)) for key in zip(*found, strict=True))
    if len(names) > len(sizes):
        found = {(what, size): time for (size, what), time in found.items()}
        sizes, names = names, sizes
    cells = [(row, *(found.get((row, name), "") for name in names)) for row in sizes]
    print_rows(console, Rows((title, *names), cells))


def _time(timing: Timing) -> str:
    over = f" = {timing.over_numpy:.2f} numpy" if timing.over_numpy else ""
    return f"{timing.median_us:.1f} ({timing.low_us:.1f}..{timing.high_us:.1f}){over}"


def _caveats(study: ReplayStudy) -> list[str]:
    """What prices had to assume, each once."""
    return list(
        dict.fromkeys(caveat for each in study.comparisons for caveat in each.caveats)
    )


def _summary_rows(comparison: Comparison) -> Rows:
    return Rows.of(
        comparison.results,
        {
            "policy": _name,
            "tokens/s": lambda r: f"{r.tokens_per_s.value:.1f}",
            "x plain": lambda r: spread(r.over[AR]),
            "x best fixed": lambda r: spread(r.over[BEST_PAIR]),
            "verified": lambda r: f"{r.verified.value:.1f}",
            "depth": lambda r: f"{r.depth.value:.1f}",
        },
    )


def bars(comparison: Comparison, name: str) -> Markup:
    """Throughput over plain decoding, a bar a policy, with intervals."""
    with canvas(9.6, 0.9 + 0.32 * len(comparison.results)) as figure:
        axes = figure.subplots()
        for row, result in enumerate(comparison.results):
            over = result.over[AR]
            shade = {ORACLE: RULE, AR: QUIET}.get(result.policy, SECOND)
            colour = ACCENT if result.policy in GUIDED else shade
            axes.barh(row, over.value, height=0.55, color=colour)
            whisker(axes, row, over.low, over.high, INK, across=True)
            end = over.high if over.known else over.value
            note(axes, f"{over.value:.2f}", end, row, INK, (6, 0), va="center")
        axes.axvline(1.0, color=QUIET, linewidth=0.8)
        best = comparison.of(BEST_PAIR).over[AR].value
        axes.axvline(best, color=SECOND, linewidth=0.8, linestyle="--")
        names = [_name(result) for result in comparison.results]
        axes.set_yticks(range(len(names)), names)
        bars_across(axes)
        axes.set_xlabel("throughput over plain decoding")
    label = f"throughput of each policy over plain decoding, {comparison.scenario}"
    return inline_svg(figure, name, label)


def _name(result: PolicyResult) -> str:
    setting = f" ({result.setting})" if result.setting else ""
    return f"{result.policy}{setting}"


def width_curves(comparison: Comparison, name: str) -> Markup:
    """Tokens a second by fixed width, a line a depth; policies as level lines."""
    colours, ends = shades(point.depth for point in comparison.fixed), []
    with canvas(9.6, 4.0) as figure:
        axes = figure.subplots()
        for depth, colour in colours.items():
            points = [point for point in comparison.fixed if point.depth == depth]
            widths = [point.width for point in points]
            speeds = [point.tokens_per_s for point in points]
            axes.plot(widths, speeds, "o-", color=colour, markersize=3.0)
            ends.append(End(widths[-1], speeds[-1], f"depth {depth}", colour))
        sides = [comparison.fixed[0].width, comparison.fixed[-1].width]
        for result in comparison.results:
            if result.policy in LINES:
                speed = result.tokens_per_s.value
                axes.plot(sides, [speed] * 2, color=INK, linewidth=0.9, linestyle="--")
                ends.append(End(sides[1], speed, result.policy, INK))
        log_axis(
            axes, (point.width for point in comparison.fixed), "tokens verified, n"
        )
        axes.set_ylim(bottom=0.0)
        label_ends(axes, ends)
        axes.set_title("tokens a second, of the whole batch")
    return inline_svg(
        figure, name, f"tokens a second by fixed width, {comparison.scenario}"
    )


def losses(studies: Sequence[WrongTableStudy]) -> Markup:
    """Throughput with each wrong table over that with the right one, by batch."""
    names = list(dict.fromkeys(each.wrong for each in studies[0].results))
    with canvas(9.6, 1.2 + 0.36 * len(names)) as figure:
        panels = figure.subplots(1, len(studies), sharey=True, squeeze=False)[0]
        for axes, study in zip(panels, studies, strict=True):
            _losses_at(axes, study, names)
        panels[0].set_yticks(range(len(names)), names)
        panels[0].tick_params(axis="y", labelcolor=INK)
        panels[0].invert_yaxis()
    label = "throughput lost by deciding with wrong tables"
    return inline_svg(figure, "wrong-tables", label)


def _losses_at(axes: Axes, study: WrongTableStudy, names: Sequence[str]) -> None:
    for each in study.results:
        colour = COLOURS[each.policy]
        row = names.index(each.wrong) + OFFSETS[each.policy]
        over = each.over_right
        value, low, high = (
            100.0 * (r - 1.0) for r in (over.value, over.low, over.high)
        )
        whisker(axes, row, low, high, colour, across=True)
        dot(axes, value, row, colour)
    axes.axvline(0.0, color=INK, linewidth=0.8)
    axes.grid(axis="x")
    axes.set_xlabel("change of throughput, %")
    axes.set_title(f"batch {study.scenario.batch}")
