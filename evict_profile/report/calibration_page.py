"""A calibration as a page and on a terminal."""

import numpy as np
from markupsafe import Markup
from rich.console import Console

from evict_profile.calibrate.acceptance import bins_of_mass
from evict_profile.calibrate.study import CalibrationStudy
from evict_profile.config import ModelSpec
from evict_profile.io import say
from evict_profile.report.console import Rows, print_notes, print_rows
from evict_profile.report.numbers import spread
from evict_profile.report.plotting import label_ends, line, log_axis, mark, shades
from evict_profile.report.render import render
from evict_profile.report.style import ACCENT, INK, QUIET, SECOND, canvas, inline_svg
from evict_profile.stats import Bools, Estimate, Floats
from evict_profile.table import CostTable

POINTS = 20
"""Bins of a drawing; their probabilities have equal sums."""
MIN_NODES = 20
MIN_CHANCE = 0.01
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
SHOWN_TOKENS = 16
COLOURS = {"raw": QUIET, "isotonic": ACCENT, "conditional": SECOND}

MISSING = {
    "routes": "The trace holds no routes: the table keeps the activation curve it had. "
    "Record with an engine that states its experts to have it measured.",
    "clocks": "The trace holds no clocks: the time of drafting stays unknown to the "
    "table.",
    "check": "Without both clocks and routes, the table's costs could not be held "
    "against this engine's own times.",
}
"""Sentences for what a trace lacks."""


def calibration_page(study: CalibrationStudy, made: CostTable) -> str:
    return render(
        "calibration.html.j2",
        title=f"What {study.trace.about.model} accepts, and what it activates",
        study=study,
        table=made,
        errors=_error_rows(study),
        children=_children_rows(study),
        unions=_union_rows(study, made.model),
        clocks=_clock_rows(study),
        missing=MISSING,
        held_out=study.calibrated.errors,
        reliability=reliability(study),
        activation=activation(study, made.model) if study.activations else None,
    )


def show_calibration(
    console: Console, study: CalibrationStudy, table: CostTable
) -> None:
    title = "held-out errors, 95 % intervals over prompts"
    say(console, study.name)
    print_rows(console, _error_rows(study), title)
    chosen = study.calibrated.chosen
    say(console, f"The table holds {chosen}, and conditional for known parents.")
    print_rows(console, _children_rows(study), "children of an accepted node")
    if study.activations:
        print_rows(console, _union_rows(study, table.model), "experts a layer")
    else:
        say(console, MISSING["routes"])
    if study.drafting:
        print_rows(console, _clock_rows(study), f"drafting by {study.drafting.engine}")
    else:
        say(console, MISSING["clocks"])
    say(console, str(study.costs or MISSING["check"]))
    print_notes(console, table.caveats)


def _error_rows(study: CalibrationStudy) -> Rows:
    chosen = study.calibrated.chosen
    return Rows.of(
        study.calibrated.errors.items(),
        {
            "calibrator": lambda item: item[0],
            "ECE": lambda item: f"{item[1].ece:.4f}",
            "Brier": lambda item: spread(item[1].brier, ".4f"),
            "Brier over": lambda item: spread(item[1].excess_brier, "+.5f"),
            "on prompts held out": lambda item: (
                "chosen" if item[0] == chosen else _judged(item[1].excess_brier)
            ),
        },
    )


def _judged(excess: Estimate) -> str:
    if excess.high < 0.0:
        return "better"
    return "worse" if excess.low > 0.0 else "unclear"


def _children_rows(study: CalibrationStudy) -> Rows:
    per_rank = study.calibrated.per_rank
    shares = [f"{share:.3f}" for share in per_rank]
    head = ("rank of the child", *map(str, range(len(shares))), "all")
    return Rows(head, [("accepted", *shares, f"{per_rank.sum():.2f}")])


def _union_rows(study: CalibrationStudy, model: ModelSpec) -> Rows:
    head, found = ("tokens", "how many", "experts a layer"), study.activations
    if found is None:
        return Rows(head, [])
    few = min(SHOWN_TOKENS, len(found[1].union) - 1)
    rows = [
        (f"whole trees, batch {batch}", len(each.union) - 1, each.at(-1))
        for batch, each in found.items()
    ]
    rows.append(("best of a tree", few, found[1].at(few)))
    cells = [
        (name, n, spread(union, ".1f"), f"{union.value / model.uniform_union(n):.2f}")
        for name, n, union in rows
    ]
    return Rows((*head, "of uniform routing"), cells)


def _clock_rows(study: CalibrationStudy) -> Rows:
    return Rows.of(
        study.drafting.batches if study.drafting else (),
        {
            "batch": lambda clock: clock.batch,
            "levels": lambda clock: len(clock.draft_us) - 1,
            "drafting, ms": lambda clock: f"{clock.draft_us[-1] / 1e3:.2f}",
            "rest of a step, ms": lambda clock: f"{clock.fixed_us / 1e3:.2f}",
            "plain rest, ms": lambda clock: f"{clock.plain_fixed_us / 1e3:.2f}",
        },
    )


def reliability(study: CalibrationStudy) -> Markup:
    """Share accepted over chance, a line a calibrator, on held-out prompts."""
    held_out, ends = study.calibrated.held_out, []
    with canvas() as figure:
        axes = figure.subplots()
        axes.plot([MIN_CHANCE, 1.0], [MIN_CHANCE, 1.0], color=INK, linewidth=0.8)
        for name, chances in held_out.chances.items():
            x, y = points(chances, held_out.accepted)
            # A share of nothing has no place on a log axis: drawn at the edge.
            shares, colour = np.maximum(y, MIN_CHANCE), COLOURS[name]
            ends.append(line(axes, x, shares, name, colour)._replace(x=1.0))
            for chance, share, at in zip(x, y, shares, strict=True):
                text = f"{name}: chance {chance:.3f}, accepted {share:.3f}"
                mark(axes, chance, at, text, color=colour)
        log_axis(axes, TICKS, "chance that the calibrator gives a node")
        log_axis(axes, TICKS, "share of the nodes accepted", "y")
        axes.set(xlim=(MIN_CHANCE, 1), ylim=(MIN_CHANCE, 1))
        label_ends(axes, ends)
    return inline_svg(figure, "reliability", "chance and share accepted")


def points(chance: Floats, accepted: Bools) -> tuple[Floats, Floats]:
    """Mean chance and share accepted, of bins of at least 20 nodes."""
    bins = bins_of_mass(chance, POINTS)
    count = np.bincount(bins)
    kept = count >= MIN_NODES
    x, y = (np.bincount(bins, v)[kept] / count[kept] for v in (chance, accepted))
    return x, y


def activation(study: CalibrationStudy, model: ModelSpec) -> Markup:
    """Experts by tokens verified, a line per batch, and uniform routing."""
    found = study.activations
    assert found is not None, "there is a drawing where there are routes"
    colours, ends = shades(found), []
    longest = max(len(each.union) for each in found.values()) - 1
    ticks = 2.0 ** np.arange(0.0, np.log2(longest) + 1e-9)
    with canvas() as figure:
        axes = figure.subplots()
        for batch, each in found.items():
            tokens = np.arange(1.0, len(each.union))
            band = (each.low[1:], each.high[1:])
            name = "one tree" if batch == 1 else f"batch {batch}"
            ends.append(line(axes, tokens, each.union[1:], name, colours[batch], band))
            for n in ticks[ticks < len(each.union)].astype(int).tolist():
                text = f"{name}, {n} tokens: {spread(each.at(n), '.1f')} experts"
                mark(axes, n, each.union[n], text, color=colours[batch])
        tokens = np.arange(1.0, 1.0 + longest)
        uniform = [model.uniform_union(int(each)) for each in tokens]
        ends.append(line(axes, tokens, uniform, "uniform", QUIET, dashes=(1, 1.5)))
        log_axis(axes, ticks.tolist(), "tokens verified, all requests")
        axes.set_ylabel("experts activated a layer")
        label_ends(axes, ends)
    return inline_svg(figure, "activation", "experts activated by tokens verified")
