"""The report of a cost table: what verification costs, and how sure that is."""

from collections.abc import Mapping
from pathlib import Path

from evict_profile.fit.estimable import collinear
from evict_profile.fit.fitted import Fitted
from evict_profile.io import write_text
from evict_profile.report import figures_cost, figures_fit
from evict_profile.report.data import StepRatio, View
from evict_profile.report.figures_fit import FITS
from evict_profile.report.numbers import unit_for
from evict_profile.report.render import render
from evict_profile.report.tables import error_rows, marginal_rows
from evict_profile.table import CostTable, TermCost, measured

MAX_CARDS = 6
PER_UNIT = {
    "one": "per forward",
    "union": "per expert activated",
    "tokens": "per token",
    "expert_rows": "per expert and row",
    "batch": "per request",
    "cache": "per cached token",
    "scores": "per token and cached token",
}
"""What one unit of a feature is."""


def write_report(fitted: Fitted, table: CostTable, path: Path) -> None:
    """Write the report of a fitted run; the folder of `path` is made if it is missing.

    Raises:
        StoreError: the file cannot be written.
    """
    write_text(page(View(fitted, table)), path)


def page(view: View) -> str:
    """The whole document."""
    key, fit = view.table.key, view.table.fit
    drawings = {
        "surface": figures_cost.surface(view),
        "width": figures_cost.cost_of_width(view),
        "staircase": figures_cost.staircases(view),
        "residuals": figures_fit.residuals(view),
        "comparison": figures_fit.comparison(view),
        "drift": figures_fit.drift(view),
        "nuisance": figures_fit.nuisance(view) if view.split_ratios else "",
        "bandwidth": figures_fit.bandwidth(view),
    }
    return render(
        "cost.html.j2",
        title=f"What verification costs: {key.model} on {key.where}",
        view=view,
        table=view.table,
        drawings=drawings,
        cards=headline_ratios(view.ratios),
        step_unit=unit_for(view.ratios[-1].step_us.value),
        errors=error_rows(fit.held_out, FITS),
        marginal=marginal_rows(view.marginal),
        equal_terms=collinear(view.fitted.cost, view.fitted.points),
        terms=[("layers", t) for t in fit.layers]
        + [("non-MoE", t) for t in fit.non_moe],
        term_range=term_range,
        per_unit=PER_UNIT,
        identity=_identity(view.table),
        base="one token" if view.widths[0] == 1 else f"{view.widths[0]} tokens",
    )


def headline_ratios(ratios: tuple[StepRatio, ...]) -> tuple[StepRatio, ...]:
    """A few widths for the headline: the largest, and halves of it or near them."""
    rest = ratios[1:]
    step = -(-len(rest) // MAX_CARDS)
    return rest[::-1][:: max(1, step)][::-1]


def term_range(term: TermCost) -> str:
    """Over which values a term's hinge rises."""
    if term.low == 0.0 and term.high is None:
        return "always"
    name = "rows per expert" if term.feature == "expert_rows" else term.feature
    upper = "up" if term.high is None else f"to {term.high:g}"
    return f"{name} from {term.low:g} {upper}"


def _identity(table: CostTable) -> Mapping[str, object]:
    made = measured(table.provenance)
    return {
        "cost table": f"{table.schema}, version {table.version}",
        "evict-profile": made.evict_profile,
        "plan sha256": made.plan_sha256,
        "samples sha256": made.samples_sha256,
        "copy bandwidth": f"{made.bandwidth_gbps:.1f} GB/s, measured",
        "captured graphs": ", ".join(map(str, table.axes.ladder)) or "none",
        **{name.replace("_", " "): str(v) for name, v in made.fingerprint.items()},
    }
