"""The page of a cost table."""

from collections.abc import Mapping
from pathlib import Path

from evict_profile.cells import OK, cell_of
from evict_profile.fit.fitted import Fitted
from evict_profile.io import write_text
from evict_profile.report import figures_cost as figures
from evict_profile.report.console import Rows, error_rows
from evict_profile.report.data import StepRatio, View
from evict_profile.report.render import render
from evict_profile.report.tables import marginal_rows
from evict_profile.table import CostTable, measured

MAX_CARDS, MAX_UNMEASURED = 6, 200
FITS = {
    "hinge": "ramps in U and n (this table)",
    "affine": "affine: a + b U + c n",
    "roofline": "roofline, both rates fitted",
    "tokens only": "any monotone function of n",
}


def write_report(fitted: Fitted, table: CostTable, path: Path) -> None:
    write_text(cost_page(View(fitted, table)), path)


def cost_page(view: View) -> str:
    table, fitted = view.table, view.fitted
    key, fit = table.key, table.fit
    return render(
        "cost.html.j2",
        title=f"What verification costs: {key.model} on {key.where}",
        view=view,
        table=table,
        drawings={
            "surface": figures.surface(view),
            "width": figures.cost_of_width(view),
            "staircase": figures.staircases(view),
            "residuals": figures.residuals(view),
            "drift": figures.drift(view),
        },
        cards=headline_ratios(view.ratios),
        errors=error_rows(fit.held_out, FITS),
        marginal=marginal_rows(fit.marginal),
        unmeasured=_unmeasured_rows(fitted),
        identity=Rows(("fact", "value"), list(_identity(table).items())),
        base="one token" if view.widths[0] == 1 else f"{view.widths[0]} tokens",
    )


def headline_ratios(ratios: tuple[StepRatio, ...]) -> tuple[StepRatio, ...]:
    """The largest width, and widths near its halves."""
    rest = ratios[1:]
    step = -(-len(rest) // MAX_CARDS)
    return rest[::-1][:: max(1, step)][::-1]


def _unmeasured_rows(fitted: Fitted) -> Rows:
    missing = fitted.frame[fitted.frame["status"] != OK].itertuples()
    cells = {(str(r.status), str(cell_of(r)), str(r.reason)) for r in missing}
    return Rows(("status", "cell", "reason"), sorted(cells)[:MAX_UNMEASURED])


def _identity(table: CostTable) -> Mapping[str, object]:
    made = measured(table.provenance)
    return {
        "cost table": f"{table.schema}, version {table.version}",
        "evict-profile": made.evict_profile,
        "plan sha256": made.plan_sha256,
        "samples sha256": made.samples_sha256,
        "copy bandwidth": f"{made.bandwidth_gbps:.1f} GB/s, measured",
        "captured graphs": ", ".join(map(str, table.axes.capture_sizes)) or "none",
        **{n.replace("_", " "): str(v) or "none" for n, v in made.fingerprint.items()},
    }
