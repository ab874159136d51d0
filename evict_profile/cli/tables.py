"""Commands about a cost table: to export it, read it, compare it, check it."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from evict_profile.cli.options import Python, TableFile, Tables, console
from evict_profile.errors import ConfigError
from evict_profile.io import check_folder, check_outputs, say


def export(
    source: Annotated[
        Path, typer.Argument(help="Run folder, or with --format a cost table (.json).")
    ],
    tables: Tables = Path("cost_tables"),
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format", help="sglang-sps, sglang-sps-additive or vllm-curves."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File of that format.")] = None,
    context: Annotated[
        int | None, typer.Option(help="Context of that file; else the smallest.")
    ] = None,
    draft_ms: Annotated[
        float | None, typer.Option(help="Time of one drafting step, if you know it.")
    ] = None,
) -> None:
    """Write a run's cost table, if it passes every gate; or a table for a system."""
    if format_name is not None:
        from evict_profile.integrations.exporters import write_format
        from evict_profile.table import CostTable, files_of

        path = out or Path(f"{format_name}.json")
        check_outputs([path], files_of(source))
        note = write_format(
            CostTable.load(source), format_name, path, context, draft_ms
        )
        say(console, note)
        say(console, f"{format_name}: {path}")
        return
    _check_format({"--out": out, "--context": context, "--draft-ms": draft_ms})
    check_folder(tables)
    from evict_profile.fit.export import export_run

    _, path = export_run(source, tables)
    say(console, f"table: {path}")


def report(
    table: TableFile,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Write the report of a table as one HTML file."""
    from evict_profile.fit.fitted import fitted_of_table
    from evict_profile.report.cost_page import write_report
    from evict_profile.table import files_of

    check_outputs([out], files_of(table))
    fitted, loaded = fitted_of_table(table)
    write_report(fitted, loaded, out)
    say(console, f"report: {out}")


def show(table: TableFile) -> None:
    """Print a table on one screen."""
    from evict_profile.report.tables import show_table
    from evict_profile.table import CostTable

    show_table(console, CostTable.load(table))


def diff(before: TableFile, after: TableFile) -> None:
    """Print what differs between two tables; exit code 1 if anything does."""
    from evict_profile.report.tables import show_diff
    from evict_profile.table import CostTable

    if show_diff(console, CostTable.load(before), CostTable.load(after)):
        raise typer.Exit(1)
    say(console, "no difference in key, costs or error")


def check(
    table: TableFile,
    recheck: Annotated[
        bool, typer.Option("--recheck", help="Measure a few cells again.")
    ] = False,
    python: Python = None,
) -> None:
    """Check a table's hash, samples and gates; exit code 1 if any fails or drifted."""
    from evict_profile.fit.fitted import fitted_of_table
    from evict_profile.report.console import show_gates

    fitted, loaded = fitted_of_table(table)
    say(console, f"{table}: schema, hash and samples are whole")
    show_gates(console, loaded.gates)
    if not all(gate.passed for gate in loaded.gates):
        raise typer.Exit(1)
    if recheck:
        from evict_profile.report.console import show_rechecks
        from evict_profile.sweep.recheck import overall, recheck_cells

        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "runner.log"
            cells = recheck_cells(loaded, fitted.frame, log, python)
        show_rechecks(console, cells, loaded.provenance.aa_floor)
        verdict = overall(cells)
        say(console, f"this machine against the table: {verdict}")
        if verdict == "drifted":
            raise typer.Exit(1)


def _check_format(options: Mapping[str, object]) -> None:
    """Refuse options that say how a format is written where none is asked for."""
    for option, value in options.items():
        if value is not None:
            raise ConfigError(
                f"{option} needs --format; add it, or leave {option} out to put a "
                "run's table into --tables"
            )
