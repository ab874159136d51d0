"""Commands about a cost table: to export it, read it, compare it, check it."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer import Argument, Context, Option

from evict_profile.cli import options
from evict_profile.cli.options import check_read, console, stderr
from evict_profile.errors import ConfigError
from evict_profile.io import check_folder, check_outputs, say, write_text

if TYPE_CHECKING:
    from evict_profile.report.advice import Advice

PLANNERS = {"out", "context", "draft_ms", "max_tokens"}
"""Options of `export` that only --format reads."""
SWEEP = "sweep.json"
"""The header of a run."""


def export(
    ctx: Context,
    source: Path = Argument(
        exists=True, help="Run folder, or with --format a cost table (.json)."
    ),
    tables: options.Tables = Path("cost_tables"),
    format_name: str | None = Option(
        None, "--format", help="Of a planner: sglang-sps or vllm-curves."
    ),
    out: Path | None = Option(None, help="Its file; else named as the format."),
    context: int | None = Option(None, help="Of the table; else its smallest."),
    draft_ms: float | None = Option(None, help="Time of one drafting step, if known."),
    max_tokens: int | None = Option(None, min=1, help="Tokens it verifies at once."),
) -> None:
    """Write a run's cost table, if it passes every gate; or a table for a planner."""
    if not format_name:
        check_read(ctx, PLANNERS, "without --format")
        check_folder(tables)
        from evict_profile.fit.export import export_run

        say(console, f"table: {export_run(source, tables)[1]}")
        return
    check_read(ctx, {"tables"}, f"by --format {format_name}")
    from evict_profile.integrations.exporters import write_format
    from evict_profile.table import CostTable, files_of

    path = out or Path(f"{format_name}.json")
    check_outputs([path], files_of(source))
    table = CostTable.load(source).as_served()
    made = write_format(table, format_name, path, context, draft_ms, max_tokens)
    for line in (*made.notes, f"{format_name}: {path}"):
        say(console, line)


def advise(
    ctx: Context,
    named: options.NamedTable,
    asked: options.AdviceOptions,
    reader: options.Engine | None = Option(None, "--for", help="Write what it reads."),
    out: Path | None = Option(
        None, help="That file.", show_default="advice-ENGINE.json, or .yaml"
    ),
    as_json: bool = Option(False, "--json", help="Print one JSON document alone."),
    markdown: bool = Option(False, "--md", help="Print a Markdown table alone."),
) -> None:
    """How much to draft at each batch, and whether to at all, from acceptance alone."""
    if as_json and markdown:
        raise ConfigError("--json and --md are two answers; give one of them")
    if named.table:
        by_name = {"model", "gpu", "engine", "tp", "dtype", "source"}
        check_read(ctx, by_name, "beside a table's file")
    if not reader:
        check_read(ctx, {"out"}, "without --for")
    if reader == "llama-cpp":
        check_read(ctx, {"batch", "traffic"}, "by llama.cpp, which runs one request")
    suffix = "yaml" if reader == "trtllm" else "json"
    file = (out or Path(f"advice-{reader}.{suffix}")) if reader else None
    advice, written = _advice(named, asked, reader, file), None
    if file and reader:
        from evict_profile.integrations.exporters import write_advice

        written = write_advice(advice.advisors[0], advice.plan, reader, file)
    if as_json:
        from evict_profile.records import to_mapping

        made = written and {"path": str(file), **to_mapping(written)}
        say(console, advice.json(file=made))
        return
    say(console, advice.markdown() if markdown else advice.text())
    if written:
        for line in (*written.notes, f"{reader}: {file}", written.command):
            say(stderr if markdown else console, line)


def _advice(
    named: options.NamedTable,
    asked: options.AdviceOptions,
    reader: str | None,
    file: Path | None,
) -> "Advice":
    """The advice that is asked for; mistakes are found before a table is composed."""
    from evict_profile.advice.acceptance import acceptance_of, file_of
    from evict_profile.advice.advise import Advisor, plan, traffic_of
    from evict_profile.cli.public import table_of
    from evict_profile.report.advice import Advice
    from evict_profile.table import CostTable, files_of

    given = [each for each in (named.table, asked.draft_table) if each]
    read = [path for each in given for path in files_of(each)]
    check_outputs([file] if file else [], [*read, file_of(asked.accept)[0]])
    lengths = acceptance_of(asked.accept)
    traffic = traffic_of(asked.traffic) if asked.traffic else {}
    draft = CostTable.load(asked.draft_table) if asked.draft_table else None
    table = table_of(named)
    by = (asked.context, asked.draft_level_ms, draft)
    advisors = [Advisor.of(table, each, *by) for each in lengths]
    batches = dict.fromkeys(asked.batch or traffic or advisors[0].batches)
    if reader == "llama-cpp":
        batches = {1: None}
    traffic = traffic or dict.fromkeys(batches, 1.0 / len(batches))
    # TensorRT-LLM refuses a longer draft than the smallest batch has.
    planned = plan(advisors[0], traffic, falling=reader == "trtllm")
    return Advice(advisors, tuple(batches), planned, bool(asked.batch))


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


def show(
    ctx: Context,
    paths: list[Path] = Argument(
        [],
        metavar="[TABLE|RUN|TREE]...",
        help="A cost table (.json), a run's folder, or folders of tables.",
        show_default="EVICT_PROFILE_TABLES, or the shipped",
    ),
    device: str | None = Option(None, help="Only tables of this, as NVIDIA_H200."),
) -> None:
    """Print a table or the fit of a run; or list tables: key, age, error, gates."""
    from evict_profile.report.tables import show_found, show_table
    from evict_profile.table import CostTable, of_device, search_path, tables_in

    named = paths[0] if len(paths) == 1 else None
    is_run = named is not None and (named / SWEEP).is_file()
    if named and (is_run or not named.is_dir()):
        check_read(ctx, {"device"}, "beside a table or a run")
        if is_run:
            from evict_profile.fit.fitted import fit_run
            from evict_profile.report.console import show_fit
            from evict_profile.sweep.store import Store

            show_fit(console, fit_run(Store(named)))
        else:
            show_table(console, CostTable.load(named))
        return
    found = tables_in(paths or search_path())
    if not found:
        raise ConfigError(
            f"no table lies in {', '.join(map(str, paths or search_path()))}; name "
            "another folder, or measure one with: evict-profile profile"
        )
    show_found(console, of_device(found, device) if device else found)


def diff(before: options.TableFile, after: options.TableFile) -> None:
    """Print what differs between two tables; exit code 1 if anything does."""
    from evict_profile.report.tables import show_diff
    from evict_profile.table import CostTable

    if show_diff(console, CostTable.load(before), CostTable.load(after)):
        raise typer.Exit(1)
    say(console, "no difference in key, costs or error")


def check(
    ctx: Context,
    table: Path = Argument(
        callback=options.whole_table_or_tree,
        help="A cost table (.json), or a tree with --recheck.",
    ),
    recheck: bool = Option(False, "--recheck", help="Measure a few cells again."),
    python: options.Python = None,
    address: str | None = Option(None, help="Of a Ray cluster, for a tree."),
    reuse_for: str | None = Option(
        None, help="State in its next version that it serves this engine version too."
    ),
    who: str | None = Option(None, help="Who answers for that."),
    why: str | None = Option(None, help="The reason to believe it."),
    rechecked: str | None = Option(
        None, help="What was measured of that version, and what it said."
    ),
) -> None:
    """Check a table's hash, samples and gates; exit code 1 if any fails or drifted."""
    if not recheck:
        check_read(ctx, {"python", "address"}, "without --recheck")
    if not reuse_for:
        check_read(ctx, {"who", "why", "rechecked"}, "without --reuse-for")
    if table.is_dir():
        check_read(ctx, {"reuse_for"}, "of a tree")
        _check_tree(table, recheck, python, address)
        return
    check_read(ctx, {"address"}, "of one table, which is rechecked here")
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
    if reuse_for:
        _state_reuse(table, reuse_for, who or "", why or "", rechecked or "")


def _check_tree(
    tree: Path, recheck: bool, python: str | None, address: str | None
) -> None:
    """Recheck the newest table of each key; a file that is no table stops nothing."""
    if not recheck:
        raise ConfigError(f"{tree}: is a folder; name a table in it, or add --recheck")
    from evict_profile.fleet.recheck import newest_tables, recheck_tree
    from evict_profile.table import tables_in

    found = tables_in([tree])
    for refused in filter(None, (each.refused for each in found)):
        say(console, f"not a table: {refused}")
    answers = recheck_tree(newest_tables(found), python, address)
    for path, (_, words) in answers.items():
        say(console, f"{path}: {words}")
    if any(status == 1 for status, _ in answers.values()):
        raise typer.Exit(1)


def _state_reuse(table: Path, version: str, who: str, why: str, rechecked: str) -> None:
    """State in a table's next version that it serves another engine version."""
    from datetime import UTC, datetime

    from evict_profile.fit.export import export_reuse
    from evict_profile.table import Reuse

    today = datetime.now(UTC).date().isoformat()
    try:
        reuse = Reuse(version, who, why, rechecked, today)
    except ValueError as error:
        raise ConfigError(f"{error}; give it") from None
    made, path = export_reuse(table, reuse)
    say(console, str(made.reuse[-1]))
    say(console, f"table: {path}")
