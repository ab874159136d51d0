"""A step as served: its time by width, and the accepted length that pays for drafts.

Drawings are at the smallest context of the table.
"""

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from evict_profile.cost_model import padded_tokens
from evict_profile.report import plotting
from evict_profile.report.console import Rows
from evict_profile.report.numbers import MS, spread
from evict_profile.report.pays import break_even as break_even_of
from evict_profile.report.plotting import End
from evict_profile.report.style import QUIET, canvas, inline_svg
from evict_profile.report.tables import SHOWN_DRAFTS
from evict_profile.served.step import ServedStep
from evict_profile.stats import Estimate, Floats
from evict_profile.table import DATASHEET, CostTable

MARKS = ("✗ failed:", "✓")

APART = 0.09
"""Between the intervals of neighbouring batches, in drafts."""


def served_parts(table: CostTable) -> dict[str, object]:
    served = ServedStep.of(table)
    gates = [(f"{MARKS[g.passed]} {g.name}", g.message) for g in table.gates]
    return {
        "served": served,
        "latency": step_latency(served),
        "pays": break_even(served),
        "numbers": step_rows(served),
        "gates": Rows(("gate", "result"), gates),
    }


def as_known(table: CostTable, estimate: Estimate) -> Estimate:
    """Without the interval of a data sheet, whose error is not known."""
    if table.origin != DATASHEET:
        return estimate
    return Estimate(estimate.value, -np.inf, np.inf)


def step_us(served: ServedStep, batch: int, n: int, context: int) -> Estimate:
    return as_known(served.table, served.us(batch, n, 0, context))


def step_latency(served: ServedStep) -> Markup:
    """Time of a step over n, a line a batch; dashed, of tokens with equal experts."""
    axis = served.table.axes
    with canvas() as figure:
        axes = figure.subplots()
        batches = plotting.shades(axis.batch).items()
        ends = [_latency(axes, served, *batch) for batch in batches]
        plotting.log_axis(axes, axis.width, "tokens verified of each request, n")
        plotting.ms_axis(axes)
        plotting.label_ends(axes, ends)
        axes.set_title("a step's latency, ms")
    return inline_svg(figure, "latency", "latency of a step over n by batch")


def _latency(axes: Axes, served: ServedStep, batch: int, colour: str) -> End:
    axis, name = served.table.axes, f"batch {batch}"
    style = "steps-pre" if axis.capture_sizes else "default"
    n = [n for n in range(1, axis.width[-1] + 1) if _covers(served, batch, n)]
    steps = [step_us(served, batch, width, _context(served)) for width in n]
    equal = equal_experts_us(served, batch, n)
    axes.plot(n, equal, "--", color=colour, linewidth=1.0, drawstyle=style)
    us, low, high = np.array([(s.value, s.low, s.high) for s in steps]).T
    band = (low, high) if steps[0].known else None
    end = plotting.line(axes, n, us, name, colour, band, drawstyle=style)
    for width in (width for width in axis.width if width <= n[-1]):
        text = f"{name}, n = {width}: {MS.spread(steps[width - 1])} ms"
        text += f"; equal experts {MS.of(equal[width - 1])}"
        plotting.mark(axes, width, us[width - 1], text, color=colour)
    return end


def _context(served: ServedStep) -> int:
    return min(served.table.axes.context)


def _covers(served: ServedStep, batch: int, n: int) -> bool:
    return served.covers(batch, n, _context(served))


def equal_experts_us(served: ServedStep, batch: int, n: list[int]) -> Floats:
    """Time of steps in which all tokens choose the same experts, float64 [widths]."""
    table = served.table
    tokens = padded_tokens(np.array(n) * batch, batch, table.axes.capture_sizes)
    union, context = float(table.model.moe.top_k), _context(served)
    forward_us = table.cost.latency_us(tokens, union, context, batch)
    return forward_us + served.tokens_us(tokens, batch) + served.beside_us(batch, 0)


def break_even(served: ServedStep) -> Markup:
    batches = plotting.shades(served.table.axes.batch).items()
    most = [k + 1.0 for k in SHOWN_DRAFTS]
    ends = [End(0.0, most[-1], "K + 1", QUIET)]
    with canvas() as figure:
        axes = figure.subplots()
        axes.plot(SHOWN_DRAFTS, most, color=QUIET, dashes=(1, 1.5))
        for row, batch in enumerate(batches):
            ends.append(_ratios(axes, served, *batch, APART * row))
        axes.set_xticks(SHOWN_DRAFTS)
        axes.set_xlabel("drafts of a step, K")
        right = SHOWN_DRAFTS[-1] + APART * len(batches)
        plotting.label_ends(axes, [end._replace(x=right) for end in ends])
        axes.set_title("break-even accepted length")
    return inline_svg(figure, "pays", "break-even accepted length over K by batch")


def _ratios(
    axes: Axes, served: ServedStep, batch: int, colour: str, shift: float
) -> End:
    drafts = [k for k in SHOWN_DRAFTS if _covers(served, batch, k + 1)]
    ratios = [break_even_of(served, batch, k) for k in drafts]
    at, name = [k + shift for k in drafts], f"batch {batch}"
    end = plotting.line(axes, at, [ratio.value for ratio in ratios], name, colour)
    for x, k, ratio in zip(at, drafts, ratios, strict=True):
        plotting.dot(axes, x, ratio, colour, f"{name}, K = {k}: {spread(ratio)}")
    return end


def step_rows(served: ServedStep) -> Rows:
    axes = served.table.axes

    def shown(batch: int, n: int, context: int) -> str:
        reaches = context <= served.table.contexts(batch)[1]
        covered = reaches and served.covers(batch, n, context)
        return MS.spread(step_us(served, batch, n, context)) if covered else ""

    rows = [
        (context, n, *(shown(batch, n, context) for batch in axes.batch))
        for context in axes.context
        for n in axes.width
    ]
    return Rows(("context", "n", *(f"batch {b}, ms" for b in axes.batch)), rows)
