"""The page of a served table: what ran, and the steps that it supports."""

from markupsafe import Markup
from matplotlib.axes import Axes

from evict_profile.report import plotting
from evict_profile.report.console import Rows
from evict_profile.report.numbers import spread
from evict_profile.report.plotting import End
from evict_profile.report.render import render
from evict_profile.report.served import setting_rows
from evict_profile.report.style import QUIET, canvas, inline_svg
from evict_profile.served.findings import findings, unknown
from evict_profile.served.table import ServedTable

LEAST_WIDEST = 8
"""Width up to which ratios are drawn, or twice the widest that ran."""


def served_page(table: ServedTable) -> str:
    problems = findings(table.runs, table.left_out)
    left_out = sorted(table.left_out.items())
    return render(
        "served.html.j2",
        title=f"What a server's steps take: {table.title}",
        table=table,
        ratios=ratio_figure(table),
        settings=setting_rows(table.settings),
        findings=[problem.sentence for problem in problems],
        unknown=unknown(table.runs),
        left_out=Rows(("run", "left out because"), left_out),
        identity=Rows(
            ("fact", "value"), [(n, getattr(table.key, n)) for n in table.key.names()]
        ),
    )


def ratio_figure(table: ServedTable) -> Markup:
    context = table.contexts[0] if table.contexts else None
    batches = plotting.shades(table.batches(context)).items()
    references = [table.reference(batch, context) for batch, _ in batches]
    over = " or ".join(dict.fromkeys(reference.draft for reference in references))
    even = " = break-even accepted length" * (not any(r.drafts for r in references))
    widest = max(setting.width for setting in table.settings)
    widths = [*range(1, max(2 * widest, LEAST_WIDEST) + 1)]
    with canvas() as figure:
        axes = figure.subplots()
        axes.plot(widths, widths, color=QUIET, dashes=(1, 1.5))
        ends = [_ratios(axes, table, *batch, widths, context) for batch in batches]
        plotting.log_axis(axes, widths, "tokens verified of each request, n")
        top = max(end.y for end in ends)
        axes.set_ylim(0.8, 1.5 * top)
        plotting.label_ends(axes, ends)
        axes.set_title(f"a step over that of {over}{even}")
    return inline_svg(figure, "ratios", f"step over {over} by width and batch")


def _ratios(
    axes: Axes,
    table: ServedTable,
    batch: int,
    colour: str,
    widths: list[int],
    context: float | None,
) -> End:
    first = table.reference(batch, context).width
    longer = [n for n in widths if n >= first]
    ratios = [table.ratio(batch, n, n - 1, context) for n in longer]
    name = f"batch {batch}"
    end = plotting.line(axes, longer, [r.value.value for r in ratios], name, colour)
    for n, ratio in zip(longer, ratios, strict=True):
        if ratio.basis == "measured":
            text = f"{name}, n = {n}: {spread(ratio.value)}, measured"
            plotting.dot(axes, n, ratio.value, colour, text)
    return end
