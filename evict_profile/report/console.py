"""Fits, tables and comparisons as a terminal shows them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from evict_profile.cells import OK, cell_of
from evict_profile.doctor import Finding
from evict_profile.fit.fitted import Fitted
from evict_profile.fit.gates import judge
from evict_profile.io import say
from evict_profile.lossless.audit import Audit, summary
from evict_profile.recheck import Recheck
from evict_profile.signed import differences
from evict_profile.stats import ErrorSummary
from evict_profile.table import CostTable, Gate, Staircase
from evict_profile.workload import Acceptance, Drafting

NOT_MEASURED = "not measured"
SHOWN_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def show_fit(console: Console, fitted: Fitted) -> None:
    """Held-out errors, gates, and cells that could not be measured."""
    errors = {name: held.error for name, held in fitted.held_out.items()}
    console.print(_error_grid(errors))
    natural = fitted.natural_error()
    if natural:
        say(console, f"natural routing, priced at its observed union: {natural}")
    show_gates(console, judge(fitted))
    failed = fitted.frame[~fitted.frame["status"].isin([OK, "infeasible"])]
    for row in failed.itertuples():
        say(console, f"not measured ({row.status}): {cell_of(row)}: {row.reason}")


def show_gates(console: Console, gates: Iterable[Gate]) -> None:
    """One line a gate."""
    for gate in gates:
        mark = "passed" if gate.passed else "FAILED"
        say(console, f"{mark} {gate.name}: {gate.says}")


def show_table(console: Console, table: CostTable) -> None:
    """A table on one screen: key, how sure it is, and its staircases."""
    key, origin = table.key, table.provenance
    say(
        console,
        f"{key.model} on {key.gpu}, {key.dtype}, {key.engine} "
        f"{key.engine_version}, {key.graph_mode}, version {table.version}",
    )
    say(
        console,
        f"measured {origin.started}, {origin.samples} samples of {origin.cells} cells "
        f"in {origin.measured_minutes} min, {table.fit.measured_layers} of "
        f"{table.model.moe_layers} MoE layers (costs scaled by "
        f"{table.fit.layer_scale:g})",
    )
    console.print(_error_grid(table.fit.held_out))
    for fact in workload_facts(table):
        say(console, fact)
    for stairs in table.staircases:
        console.print(_stairs_grid(stairs))


def workload_facts(table: CostTable) -> tuple[str, ...]:
    """What a table knows of a drafter on a workload, one line each."""
    growth, acceptance, drafting = (
        table.union_growth,
        table.acceptance,
        table.drafting,
    )
    batches = ", ".join(str(each.batch) for each in growth.by_batch)
    return (
        f"union growth: {growth.workload}" + (f", batch {batches}" if batches else ""),
        "acceptance: " + (_acceptance_fact(acceptance) if acceptance else NOT_MEASURED),
        "drafting: " + (_drafting_fact(drafting) if drafting else NOT_MEASURED),
    )


def show_diff(console: Console, before: CostTable, after: CostTable) -> bool:
    """What differs between two tables; False when nothing does."""
    facts = differences(asdict(before.key), asdict(after.key))
    for fact in facts:
        say(console, f"key {fact}")
    changed = [
        line for stairs in before.staircases for line in _stairs_change(stairs, after)
    ]
    known = {(stairs.batch, stairs.context) for stairs in before.staircases}
    changed += [
        f"{_place(stairs)}: only in the second table"
        for stairs in after.staircases
        if (stairs.batch, stairs.context) not in known
    ]
    for line in changed:
        say(console, line)
    others = _error_change(before, after) + _workload_change(before, after)
    for line in others:
        say(console, line)
    return bool(facts or changed or others)


def show_rechecks(console: Console, checks: Sequence[Recheck], floor: float) -> None:
    """One line a cell, before and now."""
    say(console, f"A/A floor: {floor:.1%}")
    for check in checks:
        say(
            console,
            f"{check.verdict:8s} {check.change:+6.1%}  {check.cell}: "
            f"{check.before.median / 1e3:.2f} -> {check.now.median / 1e3:.2f} ms",
        )


def show_findings(console: Console, findings: Iterable[Finding]) -> None:
    """One line a finding of the doctor."""
    for finding in findings:
        mark = "ok  " if finding.good else "note"
        say(console, f"{mark} {finding.name}: {finding.says}")


def show_audit(console: Console, audit: Audit, as_json: bool) -> None:
    """One combination: verdict, reason, and how large a bias was found."""
    answer = audit.as_json()
    if as_json:
        say(console, json.dumps(answer, indent=1))
        return
    verdict = "lossless" if answer["lossless"] else "BIASED"
    say(console, f"{verdict}: {audit.subject}")
    say(console, str(answer["why"]))
    say(
        console,
        f"largest total variation over {answer['worlds']} exact worlds: "
        f"{answer['max_tv']:.3f}",
    )
    if audit.settlement.readable:
        say(console, f"for example: {audit.settlement.readable}")
    if answer["instead"]:
        say(console, f"lossless instead: {answer['instead']}")


def show_audits(console: Console, audits: Sequence[Audit], as_json: bool) -> None:
    """The whole table; combinations that share verdict and reason are one line."""
    if as_json:
        say(console, json.dumps([audit.as_json() for audit in audits], indent=1))
        return
    grid = Grid("combination", "max TV", title="when truncation is lossless")
    for line in summary(audits):
        grid.add_row(line.subject, f"{float(line.max_tv):.3f}" if line.max_tv else "0")
    console.print(grid)


def _acceptance_fact(acceptance: Acceptance) -> str:
    raw, mended = (acceptance.held_out[name].ece for name in ("raw", "calibrated"))
    return (
        f"{acceptance.workload}, {acceptance.steps} trees, calibration error on unseen "
        f"text {raw:.3f}, calibrated {mended:.3f}"
    )


def _drafting_fact(drafting: Drafting) -> str:
    clocks = "; ".join(
        f"batch {clock.batch}: {len(clock.draft_us) - 1} levels in "
        f"{clock.draft_us[-1] / 1e3:.2f} ms, {clock.fixed_us / 1e3:.2f} ms fixed"
        for clock in drafting.batches
    )
    return f"{drafting.workload}, {drafting.engine}, {clocks}"


def _error_grid(errors: dict[str, ErrorSummary]) -> Grid:
    grid = Grid("fit", "median", "p90", "max", title="held-out error")
    for name, error in sorted(errors.items(), key=lambda item: item[1].median):
        shares = (f"{share:.1%}" for share in (error.median, error.p90, error.max))
        grid.add_row(name, *shares)
    return grid


def _stairs_grid(stairs: Staircase) -> Grid:
    title = f"{_place(stairs)}: step cost"
    grid = Grid("tokens", "ms", "90 % interval", "x one each", title=title)
    base = stairs.step_cost_us[stairs.batch]
    for tokens in SHOWN_TOKENS:
        if stairs.batch <= tokens < len(stairs.step_cost_us):
            cost, low, high = (
                column[tokens]
                for column in (stairs.step_cost_us, stairs.low_us, stairs.high_us)
            )
            span = f"{low / 1e3:.2f}..{high / 1e3:.2f}"
            grid.add_row(str(tokens), f"{cost / 1e3:.2f}", span, f"{cost / base:.2f}")
    return grid


def _place(stairs: Staircase) -> str:
    return f"batch {stairs.batch}, context {stairs.context}"


def _stairs_change(stairs: Staircase, after: CostTable) -> list[str]:
    name = _place(stairs)
    match = [
        other
        for other in after.staircases
        if (other.batch, other.context) == (stairs.batch, stairs.context)
    ]
    if not match:
        return [f"{name}: only in the first table"]
    length = min(len(stairs.step_cost_us), len(match[0].step_cost_us))
    first, second = (
        np.array(s.step_cost_us[stairs.batch : length]) for s in (stairs, match[0])
    )
    change = second / first - 1.0
    if not np.any(change):
        return []
    return [
        f"{name}: step cost {np.median(change):+.1%} in the median, "
        f"{change.min():+.1%}..{change.max():+.1%} over {len(change)} sizes"
    ]


def _error_change(before: CostTable, after: CostTable) -> list[str]:
    errors = (before.fit.held_out["ours"].median, after.fit.held_out["ours"].median)
    if errors[0] == errors[1]:
        return []
    return [f"held-out median error: {errors[0]:.1%} -> {errors[1]:.1%}"]


def _workload_change(before: CostTable, after: CostTable) -> list[str]:
    pairs = zip(workload_facts(before), workload_facts(after), strict=True)
    return [f"{old} -> {new}" for old, new in pairs if old != new]
