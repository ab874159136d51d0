from pathlib import Path

import numpy as np
from rich.console import Console

from evict_profile.cells import OK, cell_of
from evict_profile.fit.export import outcome
from evict_profile.fit.fitted import Fitted
from evict_profile.fit.gates import judge
from evict_profile.io import as_json, say
from evict_profile.records import to_mapping
from evict_profile.report.console import (
    Rows,
    error_rows,
    print_rows,
    show_gates,
    wrapped,
)
from evict_profile.report.pays import pays
from evict_profile.sweep.recheck import Recheck
from evict_profile.table import CostTable


def show_fit(console: Console, fitted: Fitted, json: bool = False) -> None:
    errors = {name: held.error for name, held in fitted.held_out.items() if held.error}
    if json:
        document = {
            "held_out": errors,
            "validation": fitted.validation.error,
            "natural": fitted.natural.error,
            "gates": judge(fitted),
        }
        say(console, as_json(to_mapping(document)))
        return
    natural = "natural routing, evaluated at its observed union"
    unseen = {
        "between the levels of the grid": fitted.validation.error,
        natural: fitted.natural.error,
    }
    print_rows(console, error_rows(errors), "held-out error")
    for where, error in unseen.items():
        if error:
            say(console, f"{where}: {error}")
    show_gates(console, judge(fitted))
    failed = fitted.frame[~fitted.frame["status"].isin([OK, "infeasible"])]
    for row in failed.itertuples():
        say(console, f"not measured ({row.status}): {cell_of(row)}: {row.reason}")


def show_export(console: Console, table: CostTable, path: Path, page: Path) -> None:
    fit, without = table.fit, table.fit.held_out["tokens only"].median
    say(console, outcome(table, path))
    if fit.validation:
        say(console, f"error between the levels of the grid: {fit.validation}")
    say(console, f"held-out error at its levels: {fit.held_out['hinge']}")
    say(
        console,
        f"the union axis: median held-out error {without:.1%} without it, "
        f"{fit.held_out['hinge'].median:.1%} with it",
    )
    say(console, f"report, for any browser: {page.resolve()}")
    say(console, wrapped(pays(table)))
    say(console, f"next: evict-profile advise {path} --accept 3:LENGTH")


def show_recheck(console: Console, recheck: Recheck) -> None:
    changes = zip(recheck.cells, recheck.ratio.T, strict=True)
    rows = Rows.of(
        changes,
        {
            "cell": lambda pair: pair[0],
            "change": lambda pair: f"{np.nanmedian(pair[1]) - 1.0:+.1%}",
        },
    )
    print_rows(console, rows)
    say(console, f"this machine against the table: {recheck}")
