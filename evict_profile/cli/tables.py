"""Commands about a cost table: to export it, read it, compare it, check it."""

import tempfile
from pathlib import Path

import typer
from typer import Argument, Context, Option

from evict_profile.cli import options
from evict_profile.cli.options import check_read, console
from evict_profile.errors import ConfigError
from evict_profile.io import check_folder, check_outputs, say, write_text


def export(
    ctx: Context,
    source: Path = Argument(
        exists=True, help="Run folder, or with --format a cost table (.json)."
    ),
    tables: options.Tables = Path("cost_tables"),
    format_name: str | None = Option(
        None,
        "--format",
        help="sglang-sps, sglang-sps-additive, sglang-adaptive, vllm-curves, "
        "vllm-schedule, trtllm-schedule or llama-cpp.",
    ),
    *,
    asked: options.FormatOptions,
    acceptance: options.ExportAcceptanceOptions,
) -> None:
    """Write a run's cost table, if it passes every gate; or a table for a system."""
    from evict_profile.fit.export import export_run

    of_formats = {*vars(asked), *vars(acceptance)}
    if format_name:
        from evict_profile.integrations.exporters import format_of

        unread = {*of_formats, "tables"} - {"out", *format_of(format_name).reads}
        check_read(ctx, unread, f"by --format {format_name}")
        _export_format(ctx, source, format_name, acceptance, asked)
        return
    check_read(ctx, of_formats, "without --format")
    check_folder(tables)
    say(console, f"table: {export_run(source, tables)[1]}")


def _export_format(
    ctx: Context,
    source: Path,
    format_name: str,
    acceptance: options.ExportAcceptanceOptions,
    asked: options.FormatOptions,
) -> None:
    """Write a table in the format of another system."""
    from evict_profile.advice.acceptance import acceptance_of
    from evict_profile.integrations.exporters import (
        ExportOptions,
        file_name,
        write_format,
    )
    from evict_profile.table import CostTable, files_of

    path = asked.out or Path(file_name(format_name))
    drafts = files_of(asked.draft_table) if asked.draft_table else []
    check_outputs([path], [*files_of(source), *drafts, *acceptance.files])
    forms = vars(acceptance)
    given = any(form is not None for form in forms.values())
    if format_name == "llama-cpp" and not given:
        drafting = {"draft_level_ms", "draft_table"}
        check_read(ctx, drafting, "where no acceptance is given")
    needed = ExportOptions(
        asked.context,
        asked.draft_ms,
        acceptance_of(**forms)[0] if given else None,
        asked.draft_level_ms,
        asked.max_batch,
        asked.max_tokens,
        acceptance.trace,
        asked.draft_table,
    )
    made = write_format(CostTable.load(source), format_name, path, needed)
    for line in (*made.notes, f"{format_name}: {path}", made.command):
        if line:
            say(console, line)


def advise(
    table: options.TableFile,
    acceptance: options.AcceptanceOptions,
    batch: list[int] | None = Option(
        None, min=1, help="Repeatable.", show_default="the table's"
    ),
    context: int | None = Option(
        None, help="Tokens in the cache.", show_default="its smallest"
    ),
    draft_level_ms: options.LevelMs = None,
    default_k: int | None = Option(None, min=1, help="Draft length to compare with."),
    out: Path | None = Option(None, help="A page with the curves."),
) -> None:
    """How much to draft at each batch, and whether to at all, from acceptance alone."""
    from evict_profile.advice.acceptance import acceptance_of
    from evict_profile.table import CostTable, files_of

    check_outputs([out] if out else [], [*files_of(table), *acceptance.files])
    found = acceptance_of(**vars(acceptance))  # mistakes, before torch loads
    from evict_profile.advice.advise import Advisor
    from evict_profile.advice.drafting import DraftCost
    from evict_profile.integrations.exporters import schedule_command
    from evict_profile.report.advice_page import advice_page, show_advice

    priced_by = CostTable.load(table)
    drafting = DraftCost(priced_by, draft_level_ms)
    at = min(priced_by.axes.context) if context is None else context
    if default_k and default_k not in found[0].levels:
        raise ConfigError(
            f"--default-k {default_k}: the acceptance is known of up to "
            f"{found[0].levels[-1]} drafts; give one that it is known of"
        )
    advisors = [Advisor(priced_by, each, drafting, at, default_k) for each in found]
    batches = batch or list(advisors[0].batches)
    command = schedule_command(priced_by, found[0], context, draft_level_ms)
    show_advice(console, advisors, batches)
    say(console, command)
    if out:
        write_text(advice_page(advisors, batches, [command]), out)
        say(console, f"page: {out}")


def report(table: options.TableFile, out: options.Page = Path("report.html")) -> None:
    """Write the report of a table as one HTML file."""
    from evict_profile.fit.fitted import fitted_of_table
    from evict_profile.report.cost_page import write_report
    from evict_profile.report.public import composed_page
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


def tables(
    device: str | None = Option(None, help="Only of this, as NVIDIA_H200."),
    folder: list[Path] | None = Option(
        None, help="Repeatable.", show_default="EVICT_PROFILE_TABLES, or the shipped"
    ),
) -> None:
    """List the tables that are there: key, age, error, gates."""
    from evict_profile.report.tables import show_found
    from evict_profile.table import of_device, search_path, tables_in

    folders = folder or search_path()
    found = tables_in(folders)
    if not found:
        raise ConfigError(
            f"no table lies in {', '.join(map(str, folders))}; name another --folder, "
            "or measure one with: evict-profile profile"
        )
    show_found(console, of_device(found, device) if device else found)


def reuse(
    table: options.TableFile,
    engine_version: str = Option(help="The version that it may serve as well."),
    who: str = Option(help="Who answers for it."),
    why: str = Option(help="The reason to believe it."),
    recheck: str = Option(help="What was measured again, and what it said."),
) -> None:
    """State in a table's next version that it serves another engine version."""
    from datetime import UTC, datetime

    from evict_profile.fit.export import export_reuse
    from evict_profile.table import Reuse

    today = datetime.now(UTC).date().isoformat()
    try:
        statement = Reuse(engine_version, who, why, recheck, today)
    except ValueError as error:
        raise ConfigError(f"{error}; give it") from None
    made, path = export_reuse(table, statement)
    say(console, str(made.reuse[-1]))
    say(console, f"table: {path}")


def diff(before: options.TableFile, after: options.TableFile) -> None:
    """Print what differs between two tables; exit code 1 if anything does."""
    from evict_profile.report.tables import show_diff
    from evict_profile.table import CostTable

    if show_diff(console, CostTable.load(before), CostTable.load(after)):
        raise typer.Exit(1)
    say(console, "no difference in key, costs or error")


def check(
    ctx: Context,
    table: options.TableFile,
    recheck: bool = Option(False, "--recheck", help="Measure a few cells again."),
    python: options.Python = None,
) -> None:
    """Check a table's hash, samples and gates; exit code 1 if any fails or drifted."""
    if not recheck:
        check_read(ctx, {"python"}, "without --recheck")
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
