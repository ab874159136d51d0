"""Fits, rechecks, findings and audits as a terminal shows them."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from evict_profile.cells import OK, cell_of
from evict_profile.doctor import Finding
from evict_profile.fit.fitted import Fitted
from evict_profile.fit.gates import judge
from evict_profile.io import say
from evict_profile.lossless.audit import Audit, summary
from evict_profile.report.tables import Rows, error_rows, print_rows
from evict_profile.sweep.recheck import Recheck
from evict_profile.table import CostTable, Gate


def show_fit(console: Console, fitted: Fitted) -> None:
    """Held-out errors, gates, and cells that could not be measured."""
    errors = {name: held.error for name, held in fitted.held_out.items()}
    print_rows(console, error_rows(errors), "held-out error")
    for where, cells in (
        ("between the levels of the grid", fitted.validation),
        ("natural routing, priced at its observed union", fitted.natural),
    ):
        if error := cells.error(fitted.cost):
            say(console, f"{where}: {error}")
    show_gates(console, judge(fitted))
    failed = fitted.frame[~fitted.frame["status"].isin([OK, "infeasible"])]
    for row in failed.itertuples():
        say(console, f"not measured ({row.status}): {cell_of(row)}: {row.reason}")


def show_export(console: Console, table: CostTable, path: Path) -> None:
    """Where a table went, how far it errs, and what its union axis bought."""
    errors = table.fit.held_out
    hinge, tokens_only = errors["hinge"].median, errors["tokens only"].median
    times = f" ({tokens_only / hinge:.0f}x)" if hinge > 0.0 else ""
    say(console, f"table: {path}")
    if between := table.fit.validation:
        say(console, f"error between the levels of the grid: {between}")
    say(console, f"held-out error at its levels: {errors['hinge']}")
    say(
        console,
        f"the union axis: median held-out error {tokens_only:.1%} without it, "
        f"{hinge:.1%} with it{times}",
    )


def show_gates(console: Console, gates: Iterable[Gate]) -> None:
    """One line a gate."""
    for gate in gates:
        mark = "passed" if gate.passed else "FAILED"
        say(console, f"{mark} {gate.name}: {gate.message}")


def show_recheck(console: Console, recheck: Recheck) -> None:
    """One line a cell, before and now; then what all of them tell."""
    for cell, before, now in zip(
        recheck.cells, recheck.before_us / 1e3, recheck.now_us / 1e3, strict=True
    ):
        change = now / before - 1.0
        say(console, f"{change:+6.1%}  {cell}: {before:.2f} -> {now:.2f} ms")
    change, (then, now) = recheck.change, recheck.openings
    say(console, f"all cells: {change.mean}")
    say(console, f"the cost of an expert: {change.slope}")
    say(
        console,
        f"openings of the runner: {then} behind the table, {now} now, taken to differ "
        f"by {change.between:.1%} (standard deviation)",
    )
    say(console, f"this machine against the table: {change}")


def show_findings(console: Console, findings: Iterable[Finding]) -> None:
    """One line a finding of the doctor."""
    for finding in findings:
        mark = "ok  " if finding.good else "note"
        say(console, f"{mark} {finding.name}: {finding.message}")


def show_audit(console: Console, audit: Audit, as_json: bool) -> None:
    """One combination: verdict, reason, and how large a bias was found."""
    answer = audit.as_json()
    if as_json:
        say(console, json.dumps(answer, indent=1))
        return
    verdict = "lossless" if answer["lossless"] else "BIASED"
    say(console, f"{verdict}: {audit.combination}")
    say(console, str(answer["why"]))
    say(
        console,
        f"largest total variation over {answer['worlds']} exact worlds: "
        f"{answer['max_tv']:.3f}",
    )
    if audit.readable:
        say(console, f"for example: {audit.readable}")
    if answer["instead"]:
        say(console, f"lossless instead: {answer['instead']}")


def show_audits(console: Console, audits: Sequence[Audit], as_json: bool) -> None:
    """The whole table; combinations that share verdict and reason are one line."""
    if as_json:
        say(console, json.dumps([audit.as_json() for audit in audits], indent=1))
        return
    cells = [
        (name, f"{float(max_tv):.3f}" if max_tv else "0")
        for name, max_tv in summary(audits)
    ]
    rows = Rows(("combination", "max TV"), cells)
    print_rows(console, rows, "when truncation is lossless")
