"""Advice on drafting: one screen, and a page with the curves."""

from collections.abc import Sequence

from markupsafe import Markup
from rich.console import Console

from evict_profile.advice.advise import Advisor, BatchAdvice
from evict_profile.report.numbers import spread, unit_for
from evict_profile.report.plotting import label_ends, line, shades, whisker
from evict_profile.report.render import render, show
from evict_profile.report.style import INK, canvas, inline_svg
from evict_profile.report.tables import Rows

KINDS = {"chain": "chains", "tree": "trees, cut to their best nodes"}


def show_advice(
    console: Console, advisors: Sequence[Advisor], batches: Sequence[int]
) -> None:
    """What to draft at each batch by each acceptance, on one screen."""
    show(console, "advice.txt.j2", **_shown(advisors, batches))


def advice_page(
    advisors: Sequence[Advisor], batches: Sequence[int], commands: Sequence[str]
) -> str:
    """The whole document, with the curves of each acceptance."""
    key = advisors[0].table.key
    return render(
        "advice.html.j2",
        **_shown(advisors, batches),
        title=f"How much to draft: {key.model} on {key.where}",
        curves=_curves,
        numbers=_number_rows,
        commands=commands,
    )


def _shown(advisors: Sequence[Advisor], batches: Sequence[int]) -> dict[str, object]:
    """What a page and a screen show: facts, then a part an acceptance."""
    parts = [
        {
            "kind": advisor.lengths.kind,
            "heading": f"{KINDS[advisor.lengths.kind]} ({advisor.lengths.source})",
            "advice": advice,
            "rows": advice_rows(advice),
            "verdict": verdict(advice),
            "flags": tree_flags(advisor, advice),
        }
        for advisor in advisors
        for advice in [[advisor.at(batch) for batch in batches]]
    ]
    return {"facts": facts(advisors[0]), "parts": parts}


def facts(advisor: Advisor) -> tuple[str, ...]:
    """What the advice rests on, a line each."""
    key, table = advisor.table.key, advisor.table
    return (
        f"{key.model} on {key.where}, {key.dtype}, {key.engine} {key.engine_version}, "
        f"tp {key.tp}, context {advisor.context:g}, version {table.version}",
        f"acceptance: {advisor.lengths.source}",
        f"drafting: {advisor.drafting}",
        f"default: {advisor.default[0]} drafts, {advisor.default[1]}",
        *(f"caveat: {caveat}" for caveat in table.caveats),
    )


def advice_rows(advice: Sequence[BatchAdvice]) -> Rows:
    """A row a batch: the best way to draft, its worth, and what the default loses."""
    return Rows.of(
        advice,
        {
            "batch": lambda each: each.batch,
            "draft": lambda each: each.best.name if each.best.levels else "nothing",
            "tokens a step": lambda each: f"{each.best.committed:.2f}",
            "step": lambda each: unit_for(each.best.step_us).of(each.best.step_us),
            "speed over plain (95 %)": lambda each: spread(each.best.speed),
            "": lambda each: "" if each.sure else "not settled",
            "default loses": _loss,
        },
    )


def verdict(advice: Sequence[BatchAdvice]) -> str:
    """In a sentence: where to speculate, where not, and where nobody can say."""
    still = [str(each.batch) for each in advice if not each.best.levels]
    drafts = [f"{e.best.name} at {e.batch}" for e in advice if e.best.levels]
    unsettled = [str(each.batch) for each in advice if not each.sure]
    told = {
        "Do not speculate at batch": still,
        "Draft": drafts,
        "The intervals do not settle whether drafting pays at batch": unsettled,
    }
    return " ".join(f"{words} {', '.join(at)}." for words, at in told.items() if at)


def tree_flags(advisor: Advisor, advice: Sequence[BatchAdvice]) -> tuple[str, ...]:
    """SGLang's flags for the best tree of each batch; chains have a schedule."""
    if advisor.lengths.kind != "tree":
        return ()
    return tuple(
        f"SGLang at batch {each.batch}: --speculative-num-steps {each.best.levels} "
        f"--speculative-num-draft-tokens {each.best.width}, topk as traced"
        for each in advice
        if each.best.levels
    )


def _loss(advice: BatchAdvice) -> str:
    lost = advice.default_loses
    return "not known" if lost is None else f"{lost:.1%}"


def _number_rows(advice: Sequence[BatchAdvice]) -> Rows:
    return Rows.of(
        [(each.batch, way) for each in advice for way in each.ways],
        {
            "batch": lambda each: each[0],
            "draft": lambda each: each[1].name,
            "tokens verified": lambda each: each[0] * each[1].width,
            "tokens a step": lambda each: f"{each[1].committed:.3f}",
            "step": lambda each: unit_for(each[1].step_us).of(each[1].step_us),
            "speed": lambda each: spread(each[1].speed),
        },
    )


def _curves(advice: Sequence[BatchAdvice], kind: str) -> Markup:
    """Speed over plain decoding by what is drafted, a line a batch."""
    colours = shades(each.batch for each in advice)
    with canvas(9.0, 4.0) as figure:
        axes, ends = figure.subplots(), []
        axes.axhline(1.0, color=INK, linewidth=0.8)
        for each in advice:
            x = [way.width - 1.0 for way in each.ways]
            y = [way.speed.value for way in each.ways]
            colour, best = colours[each.batch], each.best
            if best.levels:
                whisker(axes, best.width - 1, best.speed, colour)
            ends.append(line(axes, x, y, f"batch {each.batch}", colour, marker="o"))
        label_ends(axes, ends)
        drafted = "drafts, K" if kind == "chain" else "draft nodes verified"
        axes.set(xlabel=drafted, title="speed over plain decoding", ylim=(0.0, None))
    return inline_svg(figure, kind, f"speed over plain decoding by {drafted}")
