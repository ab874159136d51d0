"""A replay as a page and on a terminal."""

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from rich.console import Console

from evict_profile.io import say
from evict_profile.replay.compare import MIXED
from evict_profile.replay.comparison import STOP, Comparison, PolicyResult, percent
from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    GUIDED,
    ORACLE,
    RATE,
    RATE_DEPTH,
)
from evict_profile.replay.study import ReplayStudy
from evict_profile.report import plotting
from evict_profile.report.advice import shell_lines
from evict_profile.report.console import Rows, wrapped
from evict_profile.report.numbers import MS, spread
from evict_profile.report.plotting import End
from evict_profile.report.render import render
from evict_profile.report.style import (
    ACCENT,
    HOVER,
    INK,
    QUIET,
    RULE,
    SECOND,
    canvas,
    inline_svg,
)
from evict_profile.traces.resampling import RESAMPLES

OVER_PLAIN = "throughput over plain decoding"
LINES = (AR, RATE, RATE_DEPTH, ORACLE)
FIXED, TABLE = "fixed", "guided by the table"
KINDS = {AR: "plain", ORACLE: ORACLE, **dict.fromkeys(GUIDED, TABLE)}
COLOURS = {"plain": QUIET, FIXED: SECOND, TABLE: ACCENT, ORACLE: RULE}


def replay_page(study: ReplayStudy) -> str:
    return render(
        "replay.html.j2",
        title="Does speculation pay, and does adapting?",
        study=study,
        caveats=_caveats(study),
        mixed=MIXED in {c.scenario.workload for c in study.comparisons},
        MIXED=MIXED,
        bars=bars,
        curves=width_curves,
        verdicts=_verdict_rows(study),
        numbers=_number_rows,
        best_served=best_served,
        resamples=RESAMPLES,
    )


def show_replay(console: Console, study: ReplayStudy) -> None:
    say(console, wrapped(study.summary))
    for each in study.comparisons:
        say(console, wrapped(f"{each.scenario}: {each.advice}. {each.gains}"))
    advised = [best_served(c) for c in study.comparisons if c.choice != STOP]
    for best in dict.fromkeys((str(b), b.served_by) for b in advised if b):
        say(console, "\n".join([f"{best[0]}, by flags:", *shell_lines(best[1])]))
    if curve := study.table.acceptance:
        say(console, wrapped(f"the table's acceptance was learnt on {curve.workload}"))
    for caveat in _caveats(study):
        say(console, wrapped(f"note: {caveat}", "  "))


def best_served(comparison: Comparison) -> PolicyResult | None:
    """What is advised or strongest if flags set it, else the fastest setting so set."""
    for result in (comparison.advised, comparison.strongest):
        if result.served_by:
            return result
    settings = (each for each in comparison.results if each.policy not in GUIDED)
    served = (result for result in settings if result.served_by)
    return max(served, key=lambda result: result.tokens_per_s.value, default=None)


def _caveats(study: ReplayStudy) -> list[str]:
    caveats = (caveat for c in study.comparisons for caveat in c.caveats)
    return list(dict.fromkeys(caveats))


def _verdict_rows(study: ReplayStudy) -> Rows:
    columns = {
        "scenario": lambda c: c.scenario,
        "advice": lambda c: c.advice,
        "x plain decoding": lambda c: spread(c.advised.over[AR]),
        "best adaptive against fixed": lambda c: (
            f"{c.adaptive.policy}: {percent(c.adaptive_over_fixed)}"
        ),
        "sure": lambda c: "yes" if c.sure else "no",
    }
    rows = Rows.of(study.comparisons, columns)
    return Rows(rows.head, rows.cells, ("advice",))


def _number_rows(comparison: Comparison) -> Rows:
    return Rows.of(
        comparison.results,
        {
            "policy": str,
            "tokens/s": lambda r: spread(r.tokens_per_s, ".1f"),
            "x plain": lambda r: spread(r.over[AR]),
            "x best fixed": lambda r: spread(r.over[BEST_PAIR]),
            "share of oracle": lambda r: spread(r.over[ORACLE]),
            "committed": lambda r: spread(r.committed),
            "verified": lambda r: spread(r.verified, ".1f"),
            "levels": lambda r: spread(r.depth, ".1f"),
            "experts a layer": lambda r: spread(r.union, ".1f"),
            "step, ms": lambda r: MS.spread(r.step_us),
            "verify, ms": lambda r: MS.spread(r.verify_us),
            "draft, ms": lambda r: MS.spread(r.draft_us),
        },
    )


def bars(comparison: Comparison, name: str) -> Markup:
    rows = len(comparison.results)
    with canvas(4.8, 1.0 + 0.4 * rows) as figure:
        axes = figure.subplots()
        for row, result in enumerate(comparison.results):
            kind, over = KINDS.get(result.policy, FIXED), result.over[AR]
            text = f"{HOVER}{result}: {spread(over)} times plain decoding"
            axes.barh(row, over.value, height=0.34, color=COLOURS[kind], gid=text)
            end = over.high if over.known else over.value
            if over.known:
                axes.hlines(row, over.low, end, color=INK, linewidth=1.1)
            axes.text(end, row, f"\u2002{over.value:.2f}", va="center")
            axes.text(0.0, row - 0.22, str(result), fontsize=9.0)
        axes.axvline(1.0, color=QUIET, linewidth=0.8)
        best = comparison.of(BEST_PAIR).over[AR].value
        axes.axvline(best, color=SECOND, linewidth=0.8, linestyle="--")
        axes.set(yticks=[], ylim=(rows - 0.6, -0.8), xlabel=OVER_PLAIN)
        axes.set_xlim(left=0.0)
        axes.grid(axis="x")
        key = [Patch(color=colour, label=kind) for kind, colour in COLOURS.items()]
        figure.legend(handles=key, loc="outside upper left", ncols=len(key))
    return inline_svg(figure, name, f"{OVER_PLAIN}, {comparison.scenario}")


def width_curves(comparison: Comparison, name: str) -> Markup:
    """Tokens a second by fixed width, a line per depth; policies as level lines."""
    fixed, height = comparison.fixed, 1.0 + 0.4 * len(comparison.results)
    with canvas(4.8, height) as figure:
        axes = figure.subplots()
        for depth, colour in plotting.shades(point.depth for point in fixed).items():
            points = [(p.width, p.tokens_per_s) for p in fixed if p.depth == depth]
            axes.plot(*zip(*points, strict=True), color=colour, label=f"{depth}")
            for width, speed in points:
                text = f"depth {depth}, {width} tokens: {speed:.1f}"
                plotting.mark(axes, width, speed, text, color=colour)
        plotting.log_axis(axes, (point.width for point in fixed), "tokens verified, n")
        results = [result for result in comparison.results if result.policy in LINES]
        ends = [_level(axes, result) for result in results]
        axes.set_ylim(bottom=0.0)
        plotting.label_ends(axes, ends)
        axes.set_title("tokens a second, of the whole batch")
        figure.legend(title="depth", loc="outside lower left", ncols=8)
    label = f"tokens a second by fixed width, {comparison.scenario}"
    return inline_svg(figure, name, label)


def _level(axes: Axes, result: PolicyResult) -> End:
    speed, colour = result.tokens_per_s, ACCENT if result.policy in GUIDED else QUIET
    if speed.known:
        axes.axhspan(speed.low, speed.high, color=colour, alpha=0.14, linewidth=0.0)
    axes.axhline(speed.value, color=colour, linewidth=0.9, linestyle="--")
    return End(axes.get_xlim()[1], speed.value, result.policy, colour)
