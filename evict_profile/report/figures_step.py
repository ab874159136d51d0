"""A step as served: its time by width, and the accepted length that pays for drafts.

All at the smallest context of the table.
"""

import numpy as np
from markupsafe import Markup

from evict_profile.cost_model import padded_tokens
from evict_profile.report.console import Rows
from evict_profile.report.numbers import MS, spread, unit_for
from evict_profile.report.plotting import (
    dot,
    label_ends,
    line,
    log_axis,
    mark,
    round_axis,
    shades,
)
from evict_profile.report.style import QUIET, canvas, inline_svg
from evict_profile.report.tables import SHOWN_DRAFTS
from evict_profile.stats import Floats
from evict_profile.table import CostTable, ServedStep

APART = 0.09
"""Between the intervals of neighbouring batches, in drafts."""


def widths_of(served: ServedStep, batch: int) -> range:
    """Every n that is covered."""
    context, widest = context_of(served), max(served.table.axes.width)
    last = max(n for n in range(1, widest + 1) if served.covers(batch, n, context))
    return range(1, last + 1)


def context_of(served: ServedStep) -> int:
    return min(served.table.axes.context)


def same_experts_us(served: ServedStep, batch: int) -> Floats:
    """Time of a step at each of `widths_of` if all tokens chose the same experts."""
    table, verified = served.table, np.array(widths_of(served, batch)) * batch
    tokens = padded_tokens(verified, batch, table.axes.capture_sizes)
    union, context = float(table.model.moe.top_k), context_of(served)
    forward_us = table.cost.latency_us(tokens, union, context, batch)
    return forward_us + served.beside_us(batch, 0)


def step_latency(served: ServedStep) -> Markup:
    """Time of a step over n, a line a batch; dashed, of tokens with equal experts."""
    table, context, ends = served.table, context_of(served), []
    style = "steps-pre" if table.axes.capture_sizes else "default"
    with canvas() as figure:
        axes = figure.subplots()
        for batch, colour in shades(table.axes.batch).items():
            widths = widths_of(served, batch)
            steps = [served.us(batch, n, 0, context) for n in widths]
            us, low, high = np.array([(s.value, s.low, s.high) for s in steps]).T
            name, band = f"batch {batch}", (low, high)
            ends.append(line(axes, widths, us, name, colour, band, drawstyle=style))
            equal = same_experts_us(served, batch)
            line(axes, widths, equal, "", colour, linestyle="--", linewidth=1.0)
            for n in {*widths} & {*table.axes.width}:
                step = steps[n - 1]
                text = f"batch {batch}, n = {n}: {MS.spread(step)} ms"
                text += f"; equal experts {MS.of(equal[n - 1])}"
                mark(axes, n, step.value, text, color=colour)
        log_axis(axes, table.axes.width, "tokens verified of each request, n")
        unit = unit_for(axes.get_ylim()[1])
        round_axis(axes, unit=unit)
        label_ends(axes, ends)
        axes.set_title(f"a step's latency, {unit.name}")
    return inline_svg(figure, "latency", "latency of a step over n by batch")


def break_even(served: ServedStep) -> Markup:
    """Time of a step of K drafts over a plain step, a line a batch."""
    context, ends = context_of(served), []
    with canvas() as figure:
        axes = figure.subplots()
        for row, (batch, colour) in enumerate(shades(served.table.axes.batch).items()):
            found = {
                k: served.ratio(batch, k + 1, k, context)
                for k in SHOWN_DRAFTS
                if served.covers(batch, k + 1, context)
            }
            places = [k + APART * row for k in found]
            values = [ratio.value for ratio in found.values()]
            ends.append(line(axes, places, values, f"batch {batch}", colour))
            for at, (k, ratio) in zip(places, found.items(), strict=True):
                text = f"batch {batch}, K = {k}: {spread(ratio)}"
                dot(axes, at, ratio, colour, text)
        most = np.array(SHOWN_DRAFTS) + 1.0
        ends.append(line(axes, SHOWN_DRAFTS, most, "K + 1", QUIET, dashes=(1, 1.5)))
        last = max(end.x for end in ends)
        axes.set_xticks(SHOWN_DRAFTS)
        axes.set_xlabel("drafts of a step, K")
        label_ends(axes, [end._replace(x=last) for end in ends])
        axes.set_title("break-even accepted length")
    return inline_svg(figure, "pays", "break-even accepted length over K by batch")


def step_rows(served: ServedStep) -> Rows:
    """Time of a step, drafting apart, with its 95 % interval; a column a batch."""
    axes = served.table.axes

    def shown(batch: int, n: int, context: int) -> str:
        covered = served.covers(batch, n, context)
        return MS.spread(served.us(batch, n, 0, context)) if covered else ""

    rows = [
        (context, n, *(shown(batch, n, context) for batch in axes.batch))
        for context in axes.context
        for n in axes.width
    ]
    return Rows(("context", "n", *(f"batch {b}, ms" for b in axes.batch)), rows)


def served_parts(table: CostTable) -> dict[str, object]:
    """What `steps.html.j2` shows of a table."""
    served = ServedStep.of(table)
    return {
        "served": served,
        "latency": step_latency(served),
        "pays": break_even(served),
        "numbers": step_rows(served),
    }
