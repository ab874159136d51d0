"""The page of a replay: what to do first, then what says so."""

from collections.abc import Iterable

from evict_profile.replay.cell import MIXED, Cell, Standing
from evict_profile.replay.mismatch import JUDGED
from evict_profile.replay.policies import AR, BEST_PAIR, BEST_WIDTH, ORACLE
from evict_profile.replay.study import Study
from evict_profile.replay.verdict import Verdict, percent
from evict_profile.report.figures.robustness import losses, memories
from evict_profile.report.figures.throughput import bars, width_curves
from evict_profile.report.html import (
    Markup,
    figure,
    folded,
    join,
    paragraph,
    table,
    tag,
)
from evict_profile.report.page import document
from evict_profile.report.replay_console import ratio
from evict_profile.report.view import unit_for
from evict_profile.stats import RESAMPLES, Estimate

TITLE = "Does speculation pay, and does adapting?"
HEADINGS = {
    "places": "Place by place",
    "mismatch": "Deciding with a wrong table",
    "memory": "How long does a step tell of the next?",
    "provenance": "Where the numbers come from",
}
"""Anchor and heading of each section below the verdict."""


def page(study: Study) -> str:
    """The whole document."""
    links = (tag("a", text, href=f"#{name}") for name, text in HEADINGS.items())
    key = study.key
    top = tag(
        "header",
        tag("h1", TITLE, id="headline"),
        tag("p", f"{key['model']} on {key['gpu']}, {key['engine']}", kind="quiet"),
        tag("p", study.says, kind="lead"),
        _advice(study.verdicts),
        tag("nav", join(links)),
    )
    contents = {
        "places": _places(study),
        "mismatch": _mismatch(study),
        "memory": _memory(study),
        "provenance": _provenance(study),
    }
    body = (
        tag("section", tag("h2", HEADINGS[name]), content, id=name)
        for name, content in contents.items()
    )
    return document(TITLE, top, join(body))


def _advice(verdicts: Iterable[Verdict]) -> Markup:
    rows = [
        (str(v.place), v.choice, _set_to(v), percent(v.gain), "yes" if v.sure else "no")
        for v in verdicts
    ]
    head = ("place", "advice", "with", "against plain decoding", "told from the next")
    return table(head, rows)


def _set_to(verdict: Verdict) -> str:
    if verdict.setting is None:
        return verdict.policy
    return f"width {verdict.setting.width}, depth {verdict.setting.depth}"


def _places(study: Study) -> Markup:
    """Every place; where workloads are mixed, the single ones are folded."""
    mixed = any(cell.place.workload == MIXED for cell in study.cells)
    parts = []
    for number, (cell, verdict) in enumerate(
        zip(study.cells, study.verdicts, strict=True)
    ):
        told = _place(cell, verdict, number)
        if mixed and cell.place.workload != MIXED:
            parts.append(folded(str(cell.place), told))
        else:
            parts.append(join([tag("h3", str(cell.place)), told]))
    return join(parts)


def _place(cell: Cell, verdict: Verdict, number: int) -> Markup:
    caption = (
        f"{cell.prompts} prompts, {cell.tokens} tokens. Lines are 95 % intervals. The "
        "dashed line is the best fixed depth and width, known only in hindsight."
    )
    curves = (
        "Every point is one fixed depth and width, in the first order of replies. "
        "Dashed lines are policies."
    )
    return join(
        [
            paragraph(verdict.says),
            figure(bars(cell, f"bars{number}"), caption),
            figure(width_curves(cell, f"widths{number}"), curves),
            folded("all numbers", _throughputs(cell), _steps(cell)),
        ]
    )


def _throughputs(cell: Cell) -> Markup:
    head = (
        "policy", "set to", "tokens/s", "x plain decoding", "x best fixed width",
        "x best depth and width", "share of oracle",
    )  # fmt: skip
    rows = [
        (
            each.policy,
            each.setting,
            _between(each.tokens_per_s, 1.0, 1),
            *(ratio(each.over[name]) for name in (AR, BEST_WIDTH, BEST_PAIR, ORACLE)),
        )
        for each in cell.standings
    ]
    return table(head, rows)


def _steps(cell: Cell) -> Markup:
    unit = unit_for(max(each.step_us.value for each in cell.standings))
    head = (
        "a step of a request", "tokens committed", "tokens verified", "levels drafted",
        "experts a layer", *(f"{what}, {unit.name}" for what in
        ("step", "verify", "draft", "rest")),
    )  # fmt: skip
    return table(head, [_step(each, unit.microseconds) for each in cell.standings])


def _step(each: Standing, microseconds: float) -> tuple[str, ...]:
    times = (each.step_us, each.verify_us, each.draft_us, each.fixed_us)
    return (
        each.policy,
        _between(each.committed, 1.0, 2),
        _between(each.verified, 1.0, 1),
        _between(each.depth, 1.0, 1),
        _between(each.union, 1.0, 1),
        *(_between(time, microseconds, 2) for time in times),
    )


def _between(estimate: Estimate, unit: float, digits: int) -> str:
    """A number and its interval, if it has one."""
    value, low, high = (
        f"{each / unit:.{digits}f}"
        for each in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} ({low}..{high})" if estimate.known and low != high else value


def _mismatch(study: Study) -> Markup:
    worst = min(
        (each for here in study.misled for each in here.found),
        key=lambda each: each.over_right.value,
    )
    said = (
        "Policies decide with a wrong table, and true prices are charged. Each is "
        "compared with itself deciding with the right table. The worst found: "
        f"“{worst.policy}” with “{worst.wrong}”, {percent(worst.over_right)}."
    )
    caption = (
        f"{study.misled[0].place.workload}, temperature "
        f"{study.misled[0].place.temperature:g}. Dots from above: “{JUDGED[0]}”, "
        f"“{JUDGED[1]}” and “{JUDGED[2]}”, the last two with an eye on the clock. "
        f"Lines are 95 % intervals. The other device's table is {study.other}, scaled "
        "to the same plain decoding."
    )
    rows = [
        (
            str(here.place.batch),
            each.wrong,
            each.policy,
            percent(each.over_right),
            _between(each.verified, 1.0, 1),
        )
        for here in study.misled
        for each in here.found
    ]
    head = ("batch", "wrong", "policy", "against the right table", "tokens verified")
    return join(
        [
            paragraph(said),
            figure(losses(study.misled), caption),
            folded("all numbers", table(head, rows)),
        ]
    )


def _memory(study: Study) -> Markup:
    memory = study.memory
    best = memory.best
    judged = (
        "no other memory is surely better by more than a hundredth, so the runtime's "
        "two steps are right here"
        if memory.right
        else "the runtime's two steps are not right here"
    )
    said = (
        f"In {study.memory_of} the best half-life is {best.steps:g} steps, "
        f"{percent(best.over_default)} against the runtime's: {judged}."
    )
    caption = (
        "Left: steps of the full tree, about the mean of all replies, so a difference "
        "between replies shows at every lag; shaded is what unrelated steps would "
        "give. Right: the rule “rate” with other memories, 95 % intervals."
    )
    return join([paragraph(said), figure(memories(memory), caption)])


def _provenance(study: Study) -> Markup:
    about = study.about
    marks = dict.fromkeys(mark for cell in study.cells for mark in cell.marks)
    rows = [
        ("trace", f"{study.traces}: {about.model}, recorded by {about.engine or '?'}"),
        ("trees", f"depth {about.depth}, {about.nodes} nodes, fan {about.fan}"),
        ("positions", "a tree at each" if study.dense else "only some have a tree"),
        ("table", f"{study.table}, sha256 {study.sha256[:16]}"),
        ("other table", study.other),
        ("orders of replies", str(study.seeds)),
        ("intervals", f"95 %, {RESAMPLES} resamples of prompts and orders, paired"),
        *(("assumed", mark) for mark in marks),
    ]
    said = (
        "A replay walks the trace as an engine would, a full batch in lockstep, and "
        "charges each step the table's price of what really ran. The oracle knows what "
        "will be accepted; alone in its batch no policy can beat it, and in a larger "
        "one it is a yardstick."
    )
    words = tag("div", table(("what", "which"), rows), kind="words")
    return join([paragraph(said), words])
