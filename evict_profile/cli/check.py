import tempfile
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import typer
from typer import Argument, Context, Option

from evict_profile.cli import options
from evict_profile.cli.options import console, reject_unused
from evict_profile.errors import ConfigError
from evict_profile.io import say

if TYPE_CHECKING:
    from evict_profile.served.table import ServedTable


def check(
    ctx: Context,
    table: Path = Argument(metavar="TABLE", help="Cost table (.json)."),
    recheck: bool = Option(False, "--recheck", help="Measure some cells again."),
    python: options.Python = None,
) -> None:
    """Check a table's hash, samples and gates; measure again.

    Of a server's runs, what speaks against them. The exit code is 1 if a check fails
    or the machine drifted.
    """
    if not recheck:
        reject_unused(ctx, {"python"}, "without --recheck")
    if table.is_dir():
        raise ConfigError(
            f"{table}: is a folder; check one table, or each with: find "
            f"{quote(str(table))} -name '*.json' -exec evict-profile check {{}} \\;"
        )
    from evict_profile.served.search import load_any
    from evict_profile.served.table import ServedTable

    if isinstance(served := load_any(table), ServedTable):
        reject_unused(ctx, {"recheck"}, "with a table of a server's runs")
        _check_served(served)
        return
    _check_table(table, recheck, python)


def _check_served(table: "ServedTable") -> None:
    from evict_profile.report.served import show_findings
    from evict_profile.served.findings import findings, is_fault, unknown

    found = findings(table.runs, table.left_out)
    say(console, f"{table.path}: schema and hash: valid")
    show_findings(console, found, unknown(table.runs))
    if any(map(is_fault, found)):
        raise typer.Exit(1)


def _check_table(path: Path, recheck: bool, python: str | None) -> None:
    from evict_profile.fit.fitted import fitted_of_table
    from evict_profile.report.console import show_gates
    from evict_profile.report.fits import show_recheck
    from evict_profile.sweep.recheck import recheck_cells

    fitted, table = fitted_of_table(path)
    say(console, f"{path}: schema, hash and samples: valid")
    show_gates(console, table.gates)
    if not all(gate.passed for gate in table.gates):
        raise typer.Exit(1)
    if recheck:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "runner.log"
            drift = recheck_cells(table, fitted.frame, log, python, console)
        show_recheck(console, drift)
        if drift.verdict == "drifted":
            raise typer.Exit(1)
