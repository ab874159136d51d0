"""A replay as a page and on a terminal."""

from markupsafe import Markup
from rich.console import Console

from evict_profile.replay.compare import MIXED, Comparison
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
from evict_profile.report.numbers import spread, unit_for
from evict_profile.report.plotting import (
    End,
    bars_across,
    label_ends,
    line,
    log_axis,
    note,
    shades,
    whisker,
)
from evict_profile.report.render import render, show
from evict_profile.report.style import (
    ACCENT,
    INK,
    QUIET,
    RULE,
    SECOND,
    canvas,
    inline_svg,
)
from evict_profile.report.tables import Rows
from evict_profile.stats import RESAMPLES

LINES = (AR, RATE, DEPTH_CONDITIONAL, ORACLE)
"""Policies drawn beside the fixed widths, where they were replayed."""


def page(study: ReplayStudy) -> str:
    """The whole document."""
    wrong = [each for one in study.wrong_tables for each in one.results]
    return render(
        "replay.html.j2",
        title="Does speculation pay, and does adapting?",
        study=study,
        caveats=_caveats(study),
        mixed=MIXED in {each.scenario.workload for each in study.comparisons},
        MIXED=MIXED,
        bars=bars,
        curves=width_curves,
        unit_for=unit_for,
        worst=min(wrong, key=lambda each: each.over_right.value),
        losses=_loss_rows(study),
        baselines=(AR, BEST_WIDTH, BEST_PAIR, ORACLE),
        percent=percent,
        resamples=RESAMPLES,
    )


def show_study(console: Console, study: ReplayStudy) -> None:
    """What to do, where, and the numbers behind it."""
    caveats, rows = _caveats(study), _summary_rows
    show(console, "replay.txt.j2", study=study, caveats=caveats, rows=rows)


def _caveats(study: ReplayStudy) -> list[str]:
    """What prices had to assume, each once."""
    caveats = (caveat for each in study.comparisons for caveat in each.caveats)
    return list(dict.fromkeys(caveats))


def _loss_rows(study: ReplayStudy) -> Rows:
    """Change of throughput by deciding with a wrong table, a column a policy."""
    cells: dict[tuple[object, ...], dict[str, str]] = {}
    for one in study.wrong_tables:
        for each in one.results:
            row = cells.setdefault((one.scenario.batch, each.wrong), {})
            row[each.policy] = percent(each.over_right)
    policies = dict.fromkeys(name for row in cells.values() for name in row)
    head = ("batch", "wrong", *(f"“{policy}”" for policy in policies))
    return Rows(head, [(*at, *map(row.get, policies)) for at, row in cells.items()])


def _summary_rows(comparison: Comparison) -> Rows:
    return Rows.of(
        comparison.results,
        {
            "policy": str,
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
            whisker(axes, row, over, INK, across=True)
            end = over.high if over.known else over.value
            note(axes, f"{over.value:.2f}", end, row, INK, (6, 0), va="center")
        axes.axvline(1.0, color=QUIET, linewidth=0.8)
        best = comparison.of(BEST_PAIR).over[AR].value
        axes.axvline(best, color=SECOND, linewidth=0.8, linestyle="--")
        names = [str(result) for result in comparison.results]
        axes.set_yticks(range(len(names)), names)
        bars_across(axes)
        axes.set_xlabel("throughput over plain decoding")
    label = f"throughput of each policy over plain decoding, {comparison.scenario}"
    return inline_svg(figure, name, label)


def width_curves(comparison: Comparison, name: str) -> Markup:
    """Tokens a second by fixed width, a line a depth; policies as level lines."""
    colours, ends = shades(point.depth for point in comparison.fixed), []
    with canvas(9.6, 4.0) as figure:
        axes = figure.subplots()
        for depth, colour in colours.items():
            points = [point for point in comparison.fixed if point.depth == depth]
            widths = [point.width for point in points]
            speeds = [point.tokens_per_s for point in points]
            text = f"depth {depth}"
            ends.append(line(axes, widths, speeds, text, colour, marker=".", ms=6.0))
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
    label = f"tokens a second by fixed width, {comparison.scenario}"
    return inline_svg(figure, name, label)
