"""Commands about a cost table: to export it, read it, compare it, check it."""

import tempfile
from pathlib import Path

import typer
from typer import Argument, Option

from evict_profile.cli import options
from evict_profile.cli.options import console
from evict_profile.errors import ConfigError
from evict_profile.io import check_folder, check_outputs, say, write_text


def export(
    source: Path = Argument(help="Run folder, or with --format a cost table (.json)."),
    tables: options.Tables = Path("cost_tables"),
    format_name: str | None = Option(
        None, "--format", help="sglang-sps, sglang-sps-additive or vllm-curves."
    ),
    out: Path | None = Option(None, help="File of that format."),
    context: int | None = Option(None, help="Context of that file; else the smallest."),
    draft_ms: float | None = Option(None, help="Time of one drafting step, if known."),
) -> None:
    """Write a run's cost table, if it passes every gate; or a table for a system."""
    if format_name is not None:
        from evict_profile.integrations.exporters import ExportOptions, write_format
        from evict_profile.table import CostTable, files_of

        path = out or Path(f"{format_name}.json")
        check_outputs([path], files_of(source))
        options = ExportOptions(context, draft_ms)
        made = write_format(CostTable.load(source), format_name, path, options)
        for line in (*made.notes, f"{format_name}: {path}", made.command):
            if line:
                say(console, line)
        return
    from evict_profile.fit.export import export_run

    for option, value in (("out", out), ("context", context), ("draft-ms", draft_ms)):
        if value is not None:
            raise ConfigError(
                f"--{option} needs --format; add it, or leave --{option} out to put a "
                "run's table into --tables"
            )
    check_folder(tables)
    say(console, f"table: {export_run(source, tables)[1]}")


def report(table: options.TableFile, out: options.Page = Path("report.html")) -> None:
    """Write the report of a table as one HTML file."""
    from evict_profile.fit.fitted import fitted_of_table
    from evict_profile.report.composed_page import composed_page
    from evict_profile.report.cost_page import write_report
    from evict_profile.table import COMPOSED, files_of

    check_outputs([out], files_of(table))
    fitted, loaded = fitted_of_table(table)
    if loaded.origin == COMPOSED:
        write_text(composed_page(loaded, fitted.frame), out)
    else:
        write_report(fitted, loaded, out)
    say(console, f"report: {out}")


def show(table: options.TableFile) -> None:
    """Print a table on one screen."""
    from evict_profile.report.tables import show_table
    from evict_profile.table import CostTable

    show_table(console, CostTable.load(table))


def diff(before: options.TableFile, after: options.TableFile) -> None:
    """Print what differs between two tables; exit code 1 if anything does."""
    from evict_profile.report.tables import show_diff
    from evict_profile.table import CostTable

    if show_diff(console, CostTable.load(before), CostTable.load(after)):
        raise typer.Exit(1)
    say(console, "no difference in key, costs or error")


def check(
    table: options.TableFile,
    recheck: bool = Option(False, "--recheck", help="Measure a few cells again."),
    python: options.Python = None,
) -> None:
    """Check a table's hash, samples and gates; exit code 1 if any fails or drifted."""
    from evict_profile.fit.fitted import fitted_of_table
    from evict_profile.report.console import show_gates, show_recheck
    from evict_profile.sweep.recheck import recheck_cells

    fitted, loaded = fitted_of_table(table)
    say(console, f"{table}: schema, hash and samples are whole")
    show_gates(console, loaded.gates)
    if not all(gate.passed for gate in loaded.gates):
        raise typer.Exit(1)
    if recheck:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "runner.log"
            found = recheck_cells(loaded, fitted.frame, log, python, console)
        show_recheck(console, found)
        if found.change.verdict == "drifted":
            raise typer.Exit(1)
