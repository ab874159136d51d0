"""The report of a cost table: what verification costs, and what says so."""

import math
from collections.abc import Sequence
from pathlib import Path

from evict_profile.fit.fitted import Fitted
from evict_profile.io import write_text
from evict_profile.report import figures_cost, figures_fit
from evict_profile.report.data import Miss, StepRatio, View
from evict_profile.report.figures_fit import FITS
from evict_profile.report.numbers import spread, unit_for
from evict_profile.report.render import render
from evict_profile.report.tables import Rows, error_rows
from evict_profile.table import CostTable, TermCost

MAX_CARDS = 6
WORST = 5
MAX_UNMEASURED = 200
"""Cells listed with the reason why they were not measured."""
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
    terms = [("layers", t) for t in fit.layers] + [("non-MoE", t) for t in fit.non_moe]
    return render(
        "cost.html.j2",
        title=f"What verification costs: {key.model} on {key.gpu}",
        view=view,
        table=view.table,
        drawings=drawings,
        cards=headline_ratios(view.ratios),
        step_unit=unit_for(view.ratios[-1].step_us.value),
        ratios=_ratio_rows(view),
        worst=_miss_rows(view),
        errors=error_rows(fit.held_out, FITS),
        unmeasured=Rows(("status", "cell", "reason"), view.unmeasured[:MAX_UNMEASURED]),
        terms=_term_rows(view, [(p, t) for p, t in terms if t.us_per_unit > 0.0]),
        zero_terms=_term_rows(view, [(p, t) for p, t in terms if t.us_per_unit <= 0.0]),
        identity=_identity_rows(view),
        base="one token" if view.widths[0] == 1 else f"{view.widths[0]} tokens",
    )


def headline_ratios(ratios: tuple[StepRatio, ...]) -> tuple[StepRatio, ...]:
    """A few widths for the headline: the largest, and halves of it or near them."""
    rest = ratios[1:]
    step = -(-len(rest) // MAX_CARDS)
    return rest[::-1][:: max(1, step)][::-1]


def _ratio_rows(view: View) -> Rows:
    unit, first = unit_for(view.ratios[-1].step_us.value), view.widths[0]
    scale = 1.0 / unit.microseconds
    over = "times one token" if first == 1 else f"times {first} tokens"
    return Rows.of(
        view.ratios,
        {
            "n": lambda r: r.width,
            "union assumed": lambda r: f"{r.union:.1f}",
            f"step, {unit.name}": lambda r: spread(r.step_us, ",.2f", scale),
            over: lambda r: spread(r.times),
        },
    )


def _miss_rows(view: View) -> Rows:
    unit = view.unit

    def interval(miss: Miss) -> str:
        seen = view.intervals[miss.cell]
        known = math.isfinite(seen.high)
        ends = f"{unit.bare(seen.low)} to {unit.bare(seen.high)}"
        return ends if known else "fewer than 6 samples"

    return Rows.of(
        view.misses[:WORST],
        {
            "cell": lambda miss: miss.cell,
            f"measured, {unit.name}": lambda miss: unit.bare(miss.measured_us),
            "95 % interval": interval,
            "predicted": lambda miss: unit.bare(miss.predicted_us),
            "residual": lambda miss: f"{miss.residual:+.1%}",
        },
    )


def _term_rows(view: View, terms: Sequence[tuple[str, TermCost]]) -> Rows:
    def interval(term: TermCost) -> str:
        return " to ".join(_per_unit(end) for end in term.us_per_unit_interval)

    return Rows.of(
        terms,
        {
            "term": lambda t: f"{t[0]}: {t[1].feature}, {term_range(t[1])}",
            "us": lambda t: _per_unit(t[1].us_per_unit),
            f"{view.table.interval_percent} % interval": lambda t: interval(t[1]),
            "unit": lambda t: PER_UNIT.get(t[1].feature, "per unit"),
        },
    )


def term_range(term: TermCost) -> str:
    """Over which values a term's ramp rises."""
    if term.low == 0.0 and term.high is None:
        return "always"
    name = "rows per expert" if term.feature == "expert_rows" else term.feature
    upper = "up" if term.high is None else f"to {term.high:g}"
    return f"{name} from {term.low:g} {upper}"


def _per_unit(us: float) -> str:
    """A coefficient in microseconds, three significant digits."""
    return f"{us:,.0f}" if us >= 100 else f"{us:.3g}"


def _identity_rows(view: View) -> Rows:
    table, made = view.table, view.table.provenance
    facts = {
        "cost table": f"{table.schema}, version {table.version}",
        "evict-profile": made.evict_profile,
        "plan sha256": made.plan_sha256,
        "samples sha256": made.samples_sha256,
        "copy bandwidth": f"{made.bandwidth_gbps:.1f} GB/s, measured",
        "captured graphs": ", ".join(map(str, table.axes.ladder)) or "none",
        **{name.replace("_", " "): str(v) for name, v in made.fingerprint.items()},
    }
    cells = [(name, value or "none") for name, value in facts.items()]
    return Rows(("fact", "value"), cells)
