"""Fits, rechecks, findings and audits as a terminal shows them."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import asdict
from rich.console import Console

from evict_profile.calibrate.probed import Setting
from evict_profile.calibrate.served import ServedStudy
from evict_profile.cells import OK, cell_of
from evict_profile.doctor import Finding
from evict_profile.fit.export import outcome
from evict_profile.fit.fitted import Fitted
from evict_profile.fit.gates import judge
from evict_profile.io import say
from evict_profile.lossless.audit import Audit, summary
from evict_profile.report.numbers import US, three_digits
from evict_profile.report.tables import Rows, error_rows, print_rows
from evict_profile.stats import Estimate
from evict_profile.sweep.medians import NORMAL_95
from evict_profile.sweep.recheck import Recheck
from evict_profile.table import CostTable, Gate


def show_fit(console: Console, fitted: Fitted) -> None:
    """Held-out errors, gates, and cells that could not be measured."""
    errors = {name: held.error for name, held in fitted.held_out.items() if held.error}
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


def show_export(console: Console, table: CostTable, path: Path) -> None:
    """Where a table went, how far it errs, and what its union axis bought."""
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


def show_gates(console: Console, gates: Iterable[Gate]) -> None:
    """One line a gate."""
    for gate in gates:
        mark = "passed" if gate.passed else "FAILED"
        say(console, f"{mark} {gate.name}: {gate.message}")


def show_recheck(console: Console, recheck: Recheck) -> None:
    """Each cell before and now; then what all of them tell."""
    times = zip(recheck.cells, recheck.before_us, recheck.now_us, strict=True)
    rows = Rows.of(
        times,
        {
            "cell": lambda time: time[0],
            "before, ms": lambda time: f"{time[1] / 1e3:.2f}",
            "now, ms": lambda time: f"{time[2] / 1e3:.2f}",
            "change": lambda time: f"{time[2] / time[1] - 1.0:+.1%}",
        },
    )
    change, (before, now) = recheck.change, recheck.sessions
    print_rows(console, rows)
    say(console, f"all cells: {change.mean}")
    say(console, f"the cost of an expert: {change.slope}")
    say(console, f"sessions of the runner: {before} behind the table, {now} now")
    say(console, f"this machine against the table: {change}")


def show_served(console: Console, study: ServedStudy) -> None:
    """Each amount before and after, each run served and explained, and the meaning."""
    served, amounts = study.deployment, study.found.amounts
    before, spread = asdict(study.before.amounts), asdict(study.found.spread)
    known = []
    for name, value in asdict(amounts).items():
        far = NORMAL_95 * spread[name]
        after = Estimate(value, max(value - far, 0.0), value + far)
        known.append((name, three_digits(before[name]), US.spread(after)))
    times_us = served.served_us, served.step_us(amounts)
    steps = [
        (run.batch, run.levels, run.width, *(f"{each / 1e3:.2f}" for each in us))
        for run, *us in zip(served.runs, *times_us, strict=True)
    ]
    head = ("batch", "levels", "verified", "served, ms", "explained, ms")
    print_rows(console, Rows(("of a step", "before", "after, 95 % interval"), known))
    print_rows(console, Rows(head, steps))
    say(console, study.meaning)


def show_settings(console: Console, settings: Sequence[Setting]) -> None:
    """Each setting of a probed server, and its accepted lengths."""
    rows = Rows.of(
        settings,
        {
            "server": lambda each: each.server.url,
            "drafts": lambda each: each.server.speculation,
            "texts": lambda each: each.texts,
            "batch": lambda each: each.batch,
            "waves": lambda each: f"{len(each.runs)}, {len(each.left_out)} left out",
            "step, us": lambda each: US.spread(each.step_us),
            "accepted": lambda each: f"{each.committed:.2f}",
        },
    )
    print_rows(console, rows)
    for each in settings:
        for why, waves in Counter(each.left_out).items():
            where = f"{each.server.speculation}, batch {each.batch}"
            say(console, f"{where}: {waves} left out: {why}")


def show_findings(console: Console, findings: Iterable[Finding]) -> None:
    """One line a finding of the doctor."""
    for finding in findings:
        mark = "ok  " if finding.good else "note"
        say(console, f"{mark} {finding.name}: {finding.message}")


def show_audit(console: Console, audit: Audit, as_json: bool) -> None:
    """One combination: verdict, reason, and how large a bias was found."""
    numbers, verdict = audit.as_json(), audit.verdict
    if as_json:
        say(console, json.dumps(numbers, indent=1))
        return
    say(console, f"{'lossless' if verdict.lossless else 'BIASED'}: {audit.combination}")
    say(console, verdict.why)
    worlds, largest = numbers["worlds"], float(audit.max_tv)
    say(console, f"largest total variation over {worlds} exact worlds: {largest:.3f}")
    if audit.readable:
        say(console, f"for example: {audit.readable}")
    if verdict.instead:
        say(console, f"lossless instead: {verdict.instead}")


def show_audits(console: Console, audits: Sequence[Audit], as_json: bool) -> None:
    """The whole table; combinations that share verdict and reason are one line."""
    if as_json:
        say(console, json.dumps([audit.as_json() for audit in audits], indent=1))
        return
    cells = [(name, f"{float(tv):.3f}" if tv else "0") for name, tv in summary(audits)]
    rows = Rows(("combination", "max TV"), cells)
    print_rows(console, rows, "when truncation is lossless")
