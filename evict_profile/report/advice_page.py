"""Advice on drafting: one screen, and a page with the curves."""

from collections.abc import Sequence

from markupsafe import Markup
from matplotlib.axes import Axes
from rich.console import Console

from evict_profile.advice.advise import Advisor, BatchAdvice
from evict_profile.io import say
from evict_profile.report.numbers import spread, unit_for
from evict_profile.report.plotting import End, label_ends, shades, whisker
from evict_profile.report.render import render
from evict_profile.report.style import INK, canvas, inline_svg
from evict_profile.report.tables import Rows, print_rows


def show_advice(
    console: Console, advisors: Sequence[Advisor], batches: Sequence[int]
) -> None:
    """What to draft at each batch by each acceptance, on one screen."""
    for line in facts(advisors[0]):
        say(console, line)
    for advisor in advisors:
        advice = [advisor.at(batch) for batch in batches]
        print_rows(console, advice_rows(advice), f"\n{_heading(advisor)}")
        say(console, verdict(advice))
        for line in tree_flags(advisor, advice):
            say(console, line)


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
    open_ones = [str(each.batch) for each in advice if not each.sure]
    sentences = []
    if still:
        sentences.append(f"Do not speculate at batch {', '.join(still)}.")
    if len(still) < len(advice):
        drafts = (f"{e.best.name} at {e.batch}" for e in advice if e.best.levels)
        sentences.append(f"Draft {', '.join(drafts)}.")
    if open_ones:
        sentences.append(
            f"The intervals do not settle whether drafting pays at batch "
            f"{', '.join(open_ones)}."
        )
    return " ".join(sentences)


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


def advice_page(
    advisors: Sequence[Advisor], batches: Sequence[int], commands: Sequence[str]
) -> str:
    """The whole document, with the curves of each acceptance."""
    parts = []
    for advisor in advisors:
        advice = [advisor.at(batch) for batch in batches]
        parts.append(
            {
                "name": advisor.lengths.kind,
                "heading": _heading(advisor),
                "verdict": verdict(advice),
                "rows": advice_rows(advice),
                "drawing": _curves(advice, advisor.lengths.kind),
                "numbers": _number_rows(advice),
            }
        )
    key = advisors[0].table.key
    return render(
        "advice.html.j2",
        title=f"How much to draft: {key.model} on {key.where}",
        facts=facts(advisors[0]),
        parts=parts,
        commands=commands,
    )


def _heading(advisor: Advisor) -> str:
    what = {"chain": "chains", "tree": "trees, cut to their best nodes"}
    return f"{what[advisor.lengths.kind]} ({advisor.lengths.source})"


def _loss(advice: BatchAdvice) -> str:
    lost = advice.default_loses
    return "not known" if lost is None else f"{lost:.1%}"


def _number_rows(advice: Sequence[BatchAdvice]) -> Rows:
    head = ("batch", "draft", "tokens verified", "tokens a step", "step", "speed")
    return Rows(
        head,
        [
            (
                each.batch,
                way.name,
                each.batch * way.width,
                f"{way.committed:.3f}",
                unit_for(way.step_us).of(way.step_us),
                spread(way.speed),
            )
            for each in advice
            for way in each.ways
        ],
    )


def _curves(advice: Sequence[BatchAdvice], kind: str) -> Markup:
    """Speed over plain decoding by what is drafted, a line a batch."""
    colours = shades(each.batch for each in advice)
    with canvas(9.0, 4.0) as figure:
        axes, ends = figure.subplots(), []
        axes.axhline(1.0, color=INK, linewidth=0.8)
        for each in advice:
            x = [way.width - 1 for way in each.ways]
            y = [way.speed.value for way in each.ways]
            colour = colours[each.batch]
            axes.plot(x, y, "o-", color=colour)
            _reach(axes, each, colour)
            ends.append(End(x[-1], y[-1], f"batch {each.batch}", colour))
        label_ends(axes, ends)
        drafted = "drafts, K" if kind == "chain" else "draft nodes verified"
        axes.set(xlabel=drafted, title="speed over plain decoding", ylim=(0.0, None))
    return inline_svg(figure, kind, f"speed over plain decoding by {drafted}")


def _reach(axes: Axes, advice: BatchAdvice, colour: str) -> None:
    """The interval of the best way to draft."""
    best = advice.best.speed
    if advice.best.levels:
        whisker(axes, advice.best.width - 1, best.low, best.high, colour)
