"""A replay as a page and on a terminal: the verdict first, then what says so."""

from collections.abc import Sequence

from markupsafe import Markup
from matplotlib.axes import Axes
from rich.console import Console

from evict_profile.io import say
from evict_profile.replay.cell import MIXED, Cell, Standing
from evict_profile.replay.mismatch import JUDGED
from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    BEST_WIDTH,
    DEPTH_LINKS,
    GUIDED,
    ORACLE,
    RATE,
)
from evict_profile.replay.study import Misled, Study
from evict_profile.replay.verdict import Verdict, percent
from evict_profile.report.figures_fit import bars_across
from evict_profile.report.numbers import spread, unit_for
from evict_profile.report.plotting import (
    End,
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

LINES = (AR, RATE, DEPTH_LINKS, ORACLE)
"""Policies drawn beside the fixed widths, where they were replayed."""
COLOURS = dict(zip(JUDGED, (SECOND, QUIET, ACCENT), strict=True))
OFFSETS = dict(zip(JUDGED, (-0.22, 0.0, 0.22), strict=True))


def page(study: Study) -> str:
    """The whole document."""
    mixed = any(cell.place.workload == MIXED for cell in study.cells)
    places = [
        {
            "name": str(cell.place),
            "folded": mixed and cell.place.workload != MIXED,
            "cell": cell,
            "verdict": verdict,
            "bars": bars(cell, f"bars{number}"),
            "curves": width_curves(cell, f"widths{number}"),
            "throughputs": _throughput_rows(cell),
            "steps": _step_rows(cell),
        }
        for number, (cell, verdict) in enumerate(
            zip(study.cells, study.verdicts, strict=True)
        )
    ]
    misled = [each for here in study.misled for each in here.found]
    return render(
        "replay.html.j2",
        title="Does speculation pay, and does adapting?",
        study=study,
        advice=_advice_rows(study.verdicts),
        places=places,
        worst=min(misled, key=lambda each: each.over_right.value),
        losses=losses(study.misled),
        wrong=_wrong_rows(study.misled),
        judged=JUDGED,
        percent=percent,
        provenance=_provenance_rows(study),
    )


def show_study(console: Console, study: Study) -> None:
    """What to do, where, and the numbers behind it."""
    say(console, study.says)
    for cell, verdict in zip(study.cells, study.verdicts, strict=True):
        console.print()
        say(console, verdict.says)
        print_rows(console, _summary_rows(cell))
    if study.workload:
        say(console, f"the table's acceptance was learnt on {study.workload}")
    for caveat in _caveats(study):
        say(console, f"note: {caveat}")


def _caveats(study: Study) -> list[str]:
    """What prices had to assume, each once."""
    return list(dict.fromkeys(mark for cell in study.cells for mark in cell.marks))


def _advice_rows(verdicts: Sequence[Verdict]) -> Rows:
    cells = []
    for each in verdicts:
        fixed = each.setting
        setting = f"width {fixed.width}, depth {fixed.depth}" if fixed else each.policy
        sure = "yes" if each.sure else "no"
        cells.append((str(each.place), each.choice, setting, percent(each.gain), sure))
    head = ("place", "advice", "with", "against plain decoding", "told from the next")
    return Rows(head, cells)


def _summary_rows(cell: Cell) -> Rows:
    cells = [
        (
            _name(each),
            f"{each.tokens_per_s.value:.1f}",
            spread(each.over[AR]),
            spread(each.over[BEST_PAIR]),
            f"{each.verified.value:.1f}",
            f"{each.depth.value:.1f}",
        )
        for each in cell.standings
    ]
    head = ("policy", "tokens/s", "x plain", "x best fixed", "verified", "depth")
    return Rows(head, cells)


def _throughput_rows(cell: Cell) -> Rows:
    head = (
        "policy", "set to", "tokens/s", "x plain decoding", "x best fixed width",
        "x best depth and width", "share of oracle",
    )  # fmt: skip
    cells = [
        (
            each.policy,
            each.setting,
            spread(each.tokens_per_s, ".1f"),
            *(spread(each.over[name]) for name in (AR, BEST_WIDTH, BEST_PAIR, ORACLE)),
        )
        for each in cell.standings
    ]
    return Rows(head, cells)


def _step_rows(cell: Cell) -> Rows:
    unit = unit_for(max(each.step_us.value for each in cell.standings))
    head = (
        "a step of a request", "tokens committed", "tokens verified", "levels drafted",
        "experts a layer",
        *(f"{part}, {unit.name}" for part in ("step", "verify", "draft", "rest")),
    )  # fmt: skip
    cells = []
    for each in cell.standings:
        times = (each.step_us, each.verify_us, each.draft_us, each.fixed_us)
        counts = (each.verified, each.depth, each.union)
        cells.append(
            (
                each.policy,
                spread(each.committed),
                *(spread(count, ".1f") for count in counts),
                *(spread(time, scale=1.0 / unit.microseconds) for time in times),
            )
        )
    return Rows(head, cells)


def _wrong_rows(misled: Sequence[Misled]) -> Rows:
    cells = [
        (
            str(here.place.batch),
            each.wrong,
            each.policy,
            percent(each.over_right),
            spread(each.verified, ".1f"),
        )
        for here in misled
        for each in here.found
    ]
    head = ("batch", "wrong", "policy", "against the right table", "tokens verified")
    return Rows(head, cells)


def _provenance_rows(study: Study) -> Rows:
    about = study.about
    cells = [
        ("trace", f"{study.traces}: {about.model}, recorded by {about.engine or '?'}"),
        ("trees", f"depth {about.depth}, {about.nodes} nodes, fan {about.fan}"),
        ("positions", "a tree at each" if study.dense else "only some have a tree"),
        ("table", f"{study.table}, sha256 {study.sha256[:16]}"),
        ("other table", study.other),
        ("orders of replies", str(study.seeds)),
        ("intervals", f"95 %, {RESAMPLES} resamples of prompts and orders, paired"),
        *(("assumed", caveat) for caveat in _caveats(study)),
    ]
    return Rows(("what", "which"), cells)


def bars(cell: Cell, name: str) -> Markup:
    """Throughput over plain decoding, a bar a policy, with intervals."""
    with canvas(9.6, 0.9 + 0.32 * len(cell.standings)) as figure:
        axes = figure.subplots()
        for row, standing in enumerate(cell.standings):
            over = standing.over[AR]
            shade = {ORACLE: RULE, AR: QUIET}.get(standing.policy, SECOND)
            colour = ACCENT if standing.policy in GUIDED else shade
            axes.barh(row, over.value, height=0.55, color=colour)
            whisker(axes, row, over.low, over.high, INK, across=True)
            end = over.high if over.known else over.value
            note(axes, f"{over.value:.2f}", end, row, INK, (6, 0), va="center")
        axes.axvline(1.0, color=QUIET, linewidth=0.8)
        best = cell.of(BEST_PAIR).over[AR].value
        axes.axvline(best, color=SECOND, linewidth=0.8, linestyle="--")
        names = [_name(standing) for standing in cell.standings]
        axes.set_yticks(range(len(names)), names)
        bars_across(axes)
        axes.set_xlabel("throughput over plain decoding")
    label = f"throughput of each policy over plain decoding, {cell.place}"
    return inline_svg(figure, name, label)


def _name(standing: Standing) -> str:
    setting = f" ({standing.setting})" if standing.setting else ""
    return f"{standing.policy}{setting}"


def width_curves(cell: Cell, name: str) -> Markup:
    """Tokens a second by fixed width, a line a depth; policies as level lines."""
    colours, ends = shades(point.depth for point in cell.widths), []
    with canvas(9.6, 4.0) as figure:
        axes = figure.subplots()
        for depth, colour in colours.items():
            points = [point for point in cell.widths if point.depth == depth]
            widths = [point.width for point in points]
            speeds = [point.tokens_per_s for point in points]
            axes.plot(widths, speeds, "o-", color=colour, markersize=3.0)
            ends.append(End(widths[-1], speeds[-1], f"depth {depth}", colour))
        sides = [cell.widths[0].width, cell.widths[-1].width]
        for standing in cell.standings:
            if standing.policy in LINES:
                speed = standing.tokens_per_s.value
                axes.plot(sides, [speed] * 2, color=INK, linewidth=0.9, linestyle="--")
                ends.append(End(sides[1], speed, standing.policy, INK))
        log_axis(axes, (point.width for point in cell.widths), "tokens verified, n")
        axes.set_ylim(bottom=0.0)
        label_ends(axes, ends)
        axes.set_title("tokens a second, of the whole batch")
    return inline_svg(figure, name, f"tokens a second by fixed width, {cell.place}")


def losses(misled: Sequence[Misled]) -> Markup:
    """Throughput with each wrong table over that with the right one, by batch."""
    names = list(dict.fromkeys(each.wrong for each in misled[0].found))
    with canvas(9.6, 1.2 + 0.36 * len(names)) as figure:
        panels = figure.subplots(1, len(misled), sharey=True, squeeze=False)[0]
        for axes, here in zip(panels, misled, strict=True):
            _losses_at(axes, here, names)
        panels[0].set_yticks(range(len(names)), names)
        panels[0].tick_params(axis="y", labelcolor=INK)
        panels[0].invert_yaxis()
    label = "throughput lost by deciding with wrong tables"
    return inline_svg(figure, "mismatch", label)


def _losses_at(axes: Axes, misled: Misled, names: Sequence[str]) -> None:
    for each in misled.found:
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
    axes.set_title(f"batch {misled.place.batch}")
