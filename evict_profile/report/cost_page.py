from collections.abc import Mapping
from pathlib import Path

from evict_profile.cells import OK, cell_of
from evict_profile.fit.fitted import Fitted
from evict_profile.io import write_text
from evict_profile.report import figures_cost as figures
from evict_profile.report.console import Rows, error_rows
from evict_profile.report.data import View
from evict_profile.report.figures_step import served_parts
from evict_profile.report.pays import how_to_decide, pays
from evict_profile.report.render import render
from evict_profile.table import CostTable, measured

MAX_UNMEASURED = 200
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
    widest = [cell for cell in view.forced if cell.width == view.forced[-1].width]
    return render(
        "cost.html.j2",
        title=f"What verification costs: {table.key.model} on {table.key.where}",
        view=view,
        table=table,
        decision=pays(table),
        command=how_to_decide(table),
        place="context {:,}, batch {}".format(*view.place),
        **served_parts(table),
        surface=figures.surface(view),
        widths=figures.widths(view),
        residuals=figures.residuals(view),
        drift=figures.drift(view),
        few=widest[0],
        many=widest[-1],
        errors=error_rows(table.fit.held_out, FITS),
        unmeasured=_unmeasured_rows(fitted),
        identity=Rows(("fact", "value"), list(_identity(table).items())),
    )


def _unmeasured_rows(fitted: Fitted) -> Rows:
    missing = fitted.frame[fitted.frame["status"] != OK].itertuples()
    cells = {(str(r.status), str(cell_of(r)), str(r.reason)) for r in missing}
    return Rows(("status", "cell", "reason"), sorted(cells)[:MAX_UNMEASURED])


def _identity(table: CostTable) -> Mapping[str, object]:
    sweep = measured(table.provenance)
    return {
        "cost table": f"{table.schema}, version {table.version}",
        "evict-profile": sweep.evict_profile,
        "plan sha256": sweep.plan_sha256,
        "samples sha256": sweep.samples_sha256,
        "copy bandwidth": f"{sweep.bandwidth_gbps:.1f} GB/s, measured",
        "captured graphs": ", ".join(map(str, table.axes.capture_sizes)) or "none",
        **{n.replace("_", " "): str(v) or "none" for n, v in sweep.fingerprint.items()},
    }
