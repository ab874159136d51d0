"""A calibration as a page and on a terminal."""

import numpy as np
from markupsafe import Markup
from rich.console import Console

from evict_profile.calibrate.acceptance import bins_of_mass
from evict_profile.calibrate.activation import Activations
from evict_profile.calibrate.study import CalibrationStudy
from evict_profile.config import ModelSpec
from evict_profile.io import say
from evict_profile.report.console import Rows, print_notes, print_rows
from evict_profile.report.numbers import spread
from evict_profile.report.plotting import label_ends, line, log_axis, mark, shades
from evict_profile.report.render import render
from evict_profile.report.style import ACCENT, INK, QUIET, SECOND, canvas, inline_svg
from evict_profile.stats import Bools, Floats
from evict_profile.table import CostTable, Drafting

POINTS = 20
"""Bins of a drawing; their probabilities have equal sums."""
MIN_NODES = 20
MIN_CHANCE = 0.01
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
SHOWN_TOKENS = 16
COLOURS = {"raw": QUIET, "isotonic": ACCENT, "conditional": SECOND}

ERRORS, EXPERTS = "held-out errors", "experts a layer"
NO_ROUTES = (
    "The trace holds no routes: the table keeps the activation curve it had. Record "
    "with an engine that states its experts to have it measured."
)
NO_CLOCKS = "The trace holds no clocks: the time of drafting stays unknown."
NO_CHECK = (
    "Without both clocks and routes, the table's costs could not be compared with "
    "this engine's own times."
)


def calibration_page(study: CalibrationStudy, made: CostTable) -> str:
    sections = _sections(study, made.model)
    routes = study.activations
    drawn = activation(routes, made.model) if routes else None
    return render(
        "calibration.html.j2",
        title=f"What {study.trace.about.model} accepts, and what it activates",
        study=study,
        table=made,
        sections=sections,
        headings={title.replace(" ", "-"): title.capitalize() for title in sections},
        held_out=study.calibrated.errors,
        drawings={ERRORS: reliability(study), EXPERTS: drawn},
    )


def show_calibration(
    console: Console, study: CalibrationStudy, table: CostTable
) -> None:
    say(console, study.name)
    chosen = study.calibrated.chosen
    say(console, f"The table holds {chosen}, and conditional for known parents.")
    for title, content in _sections(study, table.model).items():
        if isinstance(content, Rows):
            print_rows(console, content, title)
        else:
            say(console, content)
    print_notes(console, table.caveats)


def _sections(study: CalibrationStudy, model: ModelSpec) -> dict[str, Rows | str]:
    """Rows by title, or a sentence for what the trace lacks."""
    return {
        ERRORS: _error_rows(study),
        "children of an accepted node": _children_rows(study),
        EXPERTS: _union_rows(study, model),
        "drafting": _clock_rows(study.drafting) if study.drafting else NO_CLOCKS,
        "costs in this engine": str(study.costs or NO_CHECK),
    }


def _error_rows(study: CalibrationStudy) -> Rows:
    chosen = study.calibrated.chosen
    return Rows.of(
        study.calibrated.errors.items(),
        {
            "calibrator": lambda item: item[0] + " (chosen)" * (item[0] == chosen),
            "ECE": lambda item: f"{item[1].ece:.4f}",
            "Brier": lambda item: spread(item[1].brier, ".4f"),
            "Brier over chosen": lambda item: spread(item[1].excess_brier, "+.5f"),
        },
    )


def _children_rows(study: CalibrationStudy) -> Rows:
    per_rank = study.calibrated.per_rank
    shares = [f"{share:.3f}" for share in per_rank]
    head = ("rank of the child", *map(str, range(len(shares))), "all")
    return Rows(head, [("accepted", *shares, f"{per_rank.sum():.2f}")])


def _union_rows(study: CalibrationStudy, model: ModelSpec) -> Rows | str:
    head, found = ("tokens", "how many", EXPERTS), study.activations
    if found is None:
        return NO_ROUTES
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


def _clock_rows(drafting: Drafting) -> Rows:
    return Rows.of(
        drafting.batches,
        {
            f"{drafting.engine}, batch": lambda clock: clock.batch,
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


def activation(found: Activations, model: ModelSpec) -> Markup:
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
