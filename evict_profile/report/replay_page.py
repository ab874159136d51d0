"""A replay as a page and on a terminal."""

from markupsafe import Markup
from rich.console import Console

from evict_profile.io import say
from evict_profile.replay.compare import MIXED
from evict_profile.replay.comparison import Comparison, percent
from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    GUIDED,
    ORACLE,
    RATE,
    RATE_DEPTH,
)
from evict_profile.replay.study import ReplayStudy
from evict_profile.report.console import Rows, print_notes, print_rows
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
from evict_profile.stats import RESAMPLES

SELECTION = (
    "the verdict is corrected for choosing the best setting on these prompts; the "
    "table below it is not, so its numbers are higher"
)
LINES = (AR, RATE, RATE_DEPTH, ORACLE)


def replay_page(study: ReplayStudy) -> str:
    return render(
        "replay.html.j2",
        title="Does speculation pay, and does adapting?",
        study=study,
        caveats=_caveats(study),
        mixed=MIXED in {each.scenario.workload for each in study.comparisons},
        MIXED=MIXED,
        bars=bars,
        curves=width_curves,
        verdicts=_verdict_rows(study),
        speeds=_speed_rows,
        steps=_step_rows,
        resamples=RESAMPLES,
    )


def show_replay(console: Console, study: ReplayStudy) -> None:
    say(console, study.summary)
    for comparison in study.comparisons:
        say(console, f"\n{comparison}")
        print_rows(console, _summary_rows(comparison))
        if served := [each for each in comparison.results if each.served_by]:
            best = max(served, key=lambda each: each.tokens_per_s.value)
            say(console, f"“{best.policy}” in SGLang: {best.served_by}")
    if known := study.table.acceptance:
        say(console, f"the table's acceptance was learnt on {known.workload}")
    print_notes(console, [SELECTION, *_caveats(study)])


def _caveats(study: ReplayStudy) -> list[str]:
    caveats = (caveat for each in study.comparisons for caveat in each.caveats)
    return list(dict.fromkeys(caveats))


def _verdict_rows(study: ReplayStudy) -> Rows:
    return Rows.of(
        study.comparisons,
        {
            "scenario": lambda c: c.scenario,
            "advice": lambda c: c.choice,
            "with": lambda c: c.advised,
            "against plain decoding": lambda c: percent(c.advised.over[AR]),
            "best fixed setting against plain": lambda c: (
                f"{c.strongest}: {percent(c.strongest.over[AR])}"
            ),
            "best adaptive against fixed": lambda c: (
                f"{c.adaptive.policy}: {percent(c.adaptive_over_fixed)}"
            ),
            "sure": lambda c: "yes" if c.sure else "no",
        },
    )


def _speed_rows(comparison: Comparison) -> Rows:
    return Rows.of(
        comparison.results,
        {
            "policy": str,
            "tokens/s": lambda r: spread(r.tokens_per_s, ".1f"),
            "x plain decoding": lambda r: spread(r.over[AR]),
            "x best depth and width": lambda r: spread(r.over[BEST_PAIR]),
            "share of oracle": lambda r: spread(r.over[ORACLE]),
        },
    )


def _step_rows(comparison: Comparison) -> Rows:
    unit = unit_for(max(each.step_us.value for each in comparison.results))

    return Rows.of(
        comparison.results,
        {
            "policy": str,
            "committed": lambda r: spread(r.committed),
            "verified": lambda r: spread(r.verified, ".1f"),
            "levels": lambda r: spread(r.depth, ".1f"),
            "experts a layer": lambda r: spread(r.union, ".1f"),
            f"step, {unit.name}": lambda r: unit.spread(r.step_us),
            f"verify, {unit.name}": lambda r: unit.spread(r.verify_us),
            f"draft, {unit.name}": lambda r: unit.spread(r.draft_us),
        },
    )


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
    """Throughput over plain decoding, a bar per policy, with intervals."""
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
    """Tokens a second by fixed width, a line per depth; policies as level lines."""
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
