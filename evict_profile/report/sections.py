"""The sections of a report, in reading order: words, a drawing, and its numbers."""

from evict_profile.report import findings, prose
from evict_profile.report.figures.bandwidth import bandwidth as draw_bandwidth
from evict_profile.report.figures.bandwidth import slope_width
from evict_profile.report.figures.comparison import NAMES
from evict_profile.report.figures.comparison import comparison as draw_comparison
from evict_profile.report.figures.drift import drift as draw_drift
from evict_profile.report.figures.drift import has_reference
from evict_profile.report.figures.nuisance import nuisance as draw_nuisance
from evict_profile.report.figures.residuals import residuals as draw_residuals
from evict_profile.report.figures.staircase import staircases as draw_staircases
from evict_profile.report.figures.surface import surface as draw_surface
from evict_profile.report.figures.width import cost_of_width
from evict_profile.report.html import (
    Markup,
    figure,
    folded,
    join,
    paragraph,
    table,
    tag,
)
from evict_profile.report.view import View, unit_for
from evict_profile.table import Gate

WORST = 5
DOTS = "Dots: medians with 95 % intervals, hollow where samples are too few."


def headline(view: View) -> Markup:
    """The answer, its interval, what the second axis bought, and the gates."""
    told = [_card(view, ratio) for ratio in prose.told_ratios(view.ratios)]
    return join(
        [
            tag("p", prose.headline(view), kind="lead"),
            tag("ul", *told, kind="cards"),
            paragraph(prose.headline_basis(view)),
            paragraph(prose.second_axis(view)),
            paragraph(prose.gates(view)),
            tag("ul", *map(_gate, view.table.gates), kind="gates"),
            folded("Every width, in numbers", _ratio_table(view)),
        ]
    )


def _card(view: View, ratio: findings.Ratio) -> Markup:
    unit = unit_for(view.ratios[-1].step_us)
    return tag(
        "li",
        tag("span", f"n = {ratio.width}"),
        tag("b", f"{prose.short(ratio.times)}\N{MULTIPLICATION SIGN}"),
        tag(
            "span", f"{prose.short(ratio.times_low)} to {prose.short(ratio.times_high)}"
        ),
        tag("span", f"{unit.of(ratio.step_us)} a step"),
    )


def _gate(gate: Gate) -> Markup:
    mark = "\N{CHECK MARK} passed" if gate.passed else "\N{BALLOT X} failed"
    kind = "passed" if gate.passed else "failed"
    return tag("li", tag("b", mark), f"{gate.name}: {gate.says}", kind=kind)


def _ratio_table(view: View) -> Markup:
    unit = unit_for(view.ratios[-1].step_us)
    head = ("n", "union assumed", f"step, {unit.name}", "90 % interval")
    rows = [
        (
            ratio.width,
            f"{ratio.union:.1f}",
            unit.bare(ratio.step_us),
            f"{unit.bare(ratio.step_low_us)} to {unit.bare(ratio.step_high_us)}",
            f"{ratio.times:.2f}",
            f"{ratio.times_low:.2f} to {ratio.times_high:.2f}",
        )
        for ratio in view.ratios
    ]
    over = f"times {prose.base_name(view)}"
    return table((*head, over, "90 % interval"), rows)


def surface(view: View) -> Markup:
    """Latency over n and U."""
    caption = (
        f"At {view.place}. Left: the fitted surface; dots are the cells measured, the "
        "line is the path that uniform routing takes through them, and the blank "
        f"corner cannot be: so few tokens wake no more. Right: the same fit. {DOTS}"
    )
    return join([paragraph(prose.surface(view)), figure(draw_surface(view), caption)])


def width(view: View) -> Markup:
    """Cost against n, forced and routed."""
    caption = (
        f"At {view.place}. Left: unions forced, so only the tokens differ along a "
        "line. Right: as the router chooses; the numbers are the unions observed. "
        f"{DOTS}"
    )
    return join([paragraph(prose.natural(view)), figure(cost_of_width(view), caption)])


def staircase(view: View) -> Markup:
    """Step cost of the whole model, and steps that went down."""
    found = findings.dips(view.intervals)
    ladder = view.table.axes.ladder
    rungs = (
        "Vertical lines are the widths for which the engine holds captured graphs: a "
        "step is padded up to the next one."
        if ladder
        else "The engine held no captured graphs, so no width is padded."
    )
    caption = f"The table's step_cost_us with its 90 % bootstrap interval. {rungs}"
    flag = paragraph(prose.dips(found))
    told = tag("ul", *(tag("li", prose.dip(dip)) for dip in found))
    return join(
        [
            paragraph(prose.staircase(view)),
            figure(draw_staircases(view), caption),
            tag("div", flag, told, kind="flag") if found else flag,
        ]
    )


def residuals(view: View) -> Markup:
    """Where the fit errs."""
    every = findings.misses(view.fitted.held_out["ours"])
    caption = (
        "One dot a cell, predicted by a fit that did not see it; dashed lines hold "
        "90 % of the cells. Structure by U would mean that the fit has the wrong form."
    )
    worst = [_miss(view, miss) for miss in every[:WORST]]
    head = ("cell", "measured", "95 % interval", "predicted", "residual")
    return join(
        [
            paragraph(prose.residuals(view)),
            figure(draw_residuals(view), caption),
            tag("h3", f"The {len(worst)} worst cells"),
            table((*head[:1], f"measured, {view.unit.name}", *head[2:]), worst),
        ]
    )


def _miss(view: View, miss: findings.Miss) -> tuple[str, ...]:
    unit, seen = view.unit, view.intervals[miss.cell]
    return (
        str(miss.cell),
        unit.bare(miss.measured_us),
        prose.between(unit, seen.low, seen.high),
        unit.bare(miss.predicted_us),
        f"{miss.residual:+.1%}",
    )


def comparison(view: View) -> Markup:
    """Four models on the same folds."""
    errors = view.table.fit.held_out
    rows = [
        (NAMES.get(name, name), f"{e.median:.1%}", f"{e.p90:.1%}", f"{e.max:.1%}")
        for name, e in errors.items()
    ]
    caption = (
        "Bar to the median, which is written, line to the p90, tick at the largest "
        "error. All four saw the same folds of whole cells, each fitted at its best."
    )
    return join(
        [
            paragraph(prose.comparison(view)),
            figure(draw_comparison(view), caption),
            table(("model of the cost", "median", "p90", "largest"), rows),
        ]
    )


def drift(view: View) -> Markup:
    """Whether the machine held still."""
    lower = (
        " Below: the raw clock and the reference of the same samples; what they share "
        "is the machine, and the ratio removes it."
        if has_reference(view)
        else ""
    )
    caption = f"Each dot is one sample of the anchor. Shaded: the A/A floor.{lower}"
    return join(
        [
            paragraph(prose.drift(view), prose.events(view)),
            figure(draw_drift(view), caption),
        ]
    )


def nuisance(view: View) -> Markup:
    """Whether the split matters."""
    found = findings.split_ratios(view.intervals)
    said = paragraph(prose.nuisance(found))
    if not found:
        return said
    caption = (
        "Lines divide the far ends of both 95 % intervals. At one t, unions stand "
        "side by side."
    )
    return join([said, figure(draw_nuisance(view), caption)])


def bandwidth(view: View) -> Markup:
    """Whether the slope in U is a bandwidth that the device can have."""
    caption = (
        f"At {view.place}. Left: the fit beside a line that rises as fast as the "
        f"experts' weights can be copied. {DOTS} Right: bytes per expert over the "
        "fitted slope, with 90 % intervals; shaded is what the gate allows, 0.3 to "
        "1.05 of the measured copy, the dashed line. A slope holds all that an expert "
        "costs beyond its rows, so kernels that pad rows to tiles imply less."
    )
    found = bandwidths(view)
    return join(
        [
            paragraph(prose.bandwidth(view, found, slope_width(view))),
            figure(draw_bandwidth(view, found), caption),
        ]
    )


def bandwidths(view: View) -> tuple[findings.Bandwidth, ...]:
    """The bandwidth implied at each width that can wake more than the fewest."""
    found = []
    for wide in view.widths:
        own = sorted(c for c in view.forced_here if c.width == wide)
        if len(own) > 1:
            largest = own[-1].union
            others = view.fitted.replicates
            implied = findings.implied_bandwidth(
                view.fitted.cost, others, own[0], largest
            )
            found += [implied] if implied else []
    return tuple(found)
