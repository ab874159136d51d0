"""The command that checks a table, and measures some of its cells again."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer import Argument, Context, Option

from evict_profile.cli import options
from evict_profile.cli.options import console, reject_unused
from evict_profile.errors import ConfigError
from evict_profile.io import as_json as json_of
from evict_profile.io import say
from evict_profile.records import to_mapping

if TYPE_CHECKING:
    from evict_profile.served.table import ServedTable


def check(
    ctx: Context,
    table: Path = Argument(
        metavar="TABLE|TREE",
        help="Cost table (.json); with --recheck, also a folder of tables.",
    ),
    recheck: bool = Option(False, "--recheck", help="Measure some cells again."),
    python: options.Python = None,
    reuse_for: str | None = Option(
        None, help="State in the table's next version that it serves this engine too."
    ),
    who: str = Option("", help="Who states --reuse-for."),
    why: str = Option("", help="Reason of --reuse-for."),
    rechecked: str = Option(
        "", help="What was measured of --reuse-for's version, and the result."
    ),
    as_json: options.AsJson = False,
) -> None:
    """Check a table's hash, samples and gates; measure again.

    Of a server's runs, what speaks against them. The exit code is 1 if a check fails
    or the machine drifted.
    """
    if not recheck:
        reject_unused(ctx, {"python"}, "without --recheck")
    if not reuse_for:
        reject_unused(ctx, {"who", "why", "rechecked"}, "without --reuse-for")
    if recheck or reuse_for:
        reject_unused(ctx, {"as_json"}, "with --recheck or --reuse-for")
    if table.is_dir():
        reject_unused(ctx, {"reuse_for"}, "with a folder of tables")
        _check_tree(table, recheck, python)
        return
    stated = {"--who": who, "--why": why, "--rechecked": rechecked}
    if reuse_for and (unsaid := [k for k, word in stated.items() if not word.strip()]):
        raise ConfigError(
            f"--reuse-for {reuse_for} needs {', '.join(unsaid)}: who states it, why, "
            "and what was measured again"
        )
    from evict_profile.served.search import load_any
    from evict_profile.served.table import ServedTable

    if isinstance(served := load_any(table), ServedTable):
        reject_unused(ctx, {"recheck", "reuse_for"}, "with a table of a server's runs")
        _check_served(served, as_json)
        return
    _check_table(table, recheck, python, as_json)
    if reuse_for:
        _state_reuse(table, reuse_for, who, why, rechecked)


def _check_served(table: "ServedTable", as_json: bool) -> None:
    from evict_profile.report.served import show_findings
    from evict_profile.served.findings import findings, is_fault, unknown

    found = findings(table.runs, table.left_out)
    if as_json:
        say(console, json_of([each._asdict() for each in found]))
    else:
        say(console, f"{table.path}: schema and hash: valid")
        show_findings(console, found, unknown(table.runs))
    if any(map(is_fault, found)):
        raise typer.Exit(1)


def _check_table(path: Path, recheck: bool, python: str | None, as_json: bool) -> None:
    from evict_profile.fit.fitted import fitted_of_table
    from evict_profile.report.console import show_gates
    from evict_profile.report.fits import show_recheck
    from evict_profile.sweep.recheck import recheck_cells

    fitted, table = fitted_of_table(path)
    if as_json:
        say(console, json_of(to_mapping(table.gates)))
    else:
        say(console, f"{path}: schema, hash and samples: valid")
        show_gates(console, table.gates)
    if not all(gate.passed for gate in table.gates):
        raise typer.Exit(1)
    if recheck:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "runner.log"
            found = recheck_cells(table, fitted.frame, log, python, console)
        show_recheck(console, found)
        if found.change.verdict == "drifted":
            raise typer.Exit(1)


def _check_tree(tree: Path, recheck: bool, python: str | None) -> None:
    """Recheck the newest table of each key; a damaged file does not stop the rest."""
    if not recheck:
        raise ConfigError(f"{tree}: is a folder; name a table in it, or add --recheck")
    from evict_profile.fleet.recheck import newest_tables, recheck_tree
    from evict_profile.table import tables_in

    found = tables_in([tree])
    damaged = [each.refused for each in found if each.refused]
    for refused in damaged:
        say(console, f"not a table: {refused}")
    answers = recheck_tree(newest_tables(found), python)
    for path, (_, words) in answers.items():
        say(console, f"{path}: {words}")
    if damaged or any(status > 0 for status, _ in answers.values()):
        raise typer.Exit(1)


def _state_reuse(table: Path, version: str, who: str, why: str, rechecked: str) -> None:
    from datetime import UTC, datetime

    from evict_profile.fit.export import export_reuse
    from evict_profile.table import Reuse

    today = datetime.now(UTC).date().isoformat()
    reuse = Reuse(version, who, why, rechecked, today)
    made, path = export_reuse(table, reuse)
    say(console, str(made.reuse[-1]))
    say(console, f"table: {path}")
