import re
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from typer import Argument, Context, Option

from evict_profile.cli import options
from evict_profile.cli.options import console, reject_unused
from evict_profile.errors import ConfigError
from evict_profile.io import as_json as json_of
from evict_profile.io import check_outputs, say, write_text
from evict_profile.records import to_mapping

RUN_HEADER = "sweep.json"

AnyTable = Annotated[
    Path,
    Argument(
        callback=options.valid_table, help="Table (.json), of a sweep or a server."
    ),
]


def report(
    paths: list[Path] = Argument(
        metavar="TABLE|TREE...",
        help="A table (.json), or folders of tables.",
    ),
    out: Path | None = Option(
        None, help="Output file (HTML).", show_default="report.html, or explore.html"
    ),
) -> None:
    """Write the report of a table, or a page of all tables in folders, as HTML.

    The page of folders shows the fastest draft length by table, accepted length, batch
    size and time of drafting.
    """
    from evict_profile.served.search import load_any
    from evict_profile.served.table import ServedTable
    from evict_profile.table import COMPOSED, files_of, tables_in

    table = paths[0]
    if len(paths) > 1 or table.is_dir():
        from evict_profile.report.explore import write_explore

        out = out or Path("explore.html")
        check_outputs([out], [])
        write_explore(console, tables_in(paths), out)
        return
    out = out or Path("report.html")
    check_outputs([out], files_of(table))
    content = load_any(table)
    if isinstance(content, ServedTable):
        from evict_profile.report.served_page import served_page

        write_text(served_page(content), out)
    elif content.origin == COMPOSED:
        from evict_profile.report.public import page_of

        write_text(page_of(table), out)
    else:
        from evict_profile.fit.fitted import fitted_of_table
        from evict_profile.report.cost_page import write_report

        write_report(*fitted_of_table(table), out)
    say(console, f"report: {out}")


def show(
    ctx: Context,
    paths: list[Path] = Argument(
        [],
        metavar="[TABLE|MODEL|TREE]...",
        help="Cost table (.json), model (a name, its config.json or folder, a YAML), "
        "or folders of cost tables.",
        show_default="EVICT_PROFILE_TABLES, or ./cost_tables and the shipped",
    ),
    model: options.ModelName = None,
    gpu: options.GpuName = None,
    engine: options.EngineName = None,
    as_json: options.AsJson = False,
) -> None:
    """Print a table, what is read of a model, or a list of tables."""
    from evict_profile.config.load import is_model, load_model, model_label
    from evict_profile.table import search_path

    label = model and model_label(model)
    names = {"model": label, "gpu": gpu, "engine": engine}
    named = paths[0] if len(paths) == 1 else None
    if named and (named / RUN_HEADER).is_file():
        raise ConfigError(
            f"{named}: is a run, which fit prints; type: evict-profile fit "
            f"{quote(str(named))}"
        )
    # Suffixes of files begin with a letter; "Qwen3.5-32B" is a model's name.
    is_file = named and (named.exists() or re.match(r"\.[a-z]", named.suffix))
    if named and (is_model(named) or not is_file):
        reject_unused(ctx, {*names}, "with a model")
        from evict_profile.report.model import show_model

        show_model(console, load_model(str(named)), as_json, str(named))
        return
    if named and not named.is_dir():
        reject_unused(ctx, {*names}, "with a table")
        _show_table(named, as_json)
        return
    if files := [path for path in paths if path.is_file()]:
        raise ConfigError(f"{files[0]}: is a file; show it alone, or compare with diff")
    _show_list(paths or search_path(), names, as_json)


def _show_table(path: Path, as_json: bool) -> None:
    from evict_profile.report.served import show_served_table
    from evict_profile.report.tables import show_table
    from evict_profile.served.search import load_any
    from evict_profile.served.table import ServedTable

    table = load_any(path)
    if isinstance(table, ServedTable):
        show_served_table(console, table, as_json)
    else:
        show_table(console, table, as_json)


def _show_list(
    folders: Sequence[Path], names: dict[str, str | None], as_json: bool
) -> None:
    from evict_profile.report.console import print_rows
    from evict_profile.report.served import served_list
    from evict_profile.report.tables import found_records, show_found
    from evict_profile.served.search import is_named, served_tables
    from evict_profile.table import tables_in
    from evict_profile.table.search import no_table, of_names

    # A package beside its checkout has the same tables as that.
    found = {each.table or each.path: each for each in reversed(tables_in(folders))}
    entries, served = [*reversed(found.values())], [*served_tables(folders)]
    if not (entries or served):
        where = ", ".join(map(str, folders))
        raise ConfigError(
            f"no table and no sweep lies in {where} (one that the union test refused "
            "leaves none); name another folder, or measure with: evict-profile sweep"
        )
    named = of_names(entries, **names) if any(names.values()) else entries
    of_server = [entry for entry in served if is_named(entry.key, **names)]
    if not (named or of_server):
        raise no_table(entries, names)
    if as_json:
        rows = served_list(of_server).records
        keys = (to_mapping(entry.key) for entry in of_server)
        both = (key | row for key, row in zip(keys, rows, strict=True))
        say(console, json_of([*found_records(named), *both]))
        return
    show_found(console, named)
    if of_server:
        print_rows(console, served_list(of_server))


def diff(before: AnyTable, after: AnyTable, as_json: options.AsJson = False) -> None:
    """Print what differs between two tables.

    The exit code is 1 if anything does.
    """
    from evict_profile.report.served import show_served_diff
    from evict_profile.report.tables import show_diff
    from evict_profile.served.search import load_any
    from evict_profile.served.table import ServedTable

    one, other = load_any(before), load_any(after)
    if isinstance(one, ServedTable) and isinstance(other, ServedTable):
        differs = show_served_diff(console, one, other, as_json)
    elif isinstance(one, ServedTable) or isinstance(other, ServedTable):
        raise ConfigError(
            f"{before} and {after}: one holds a server's runs, and the other costs of "
            "a forward; compare two of one kind"
        )
    else:
        differs = show_diff(console, one, other, as_json)
    if differs:
        raise typer.Exit(1)


def doctor() -> None:
    """Print what works on this machine, and which models fit."""
    from evict_profile.doctor import examine

    for finding in examine():
        say(console, str(finding))
