from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from typer import Argument, Option

from evict_profile.cli import options
from evict_profile.cli.options import console
from evict_profile.errors import ConfigError
from evict_profile.io import as_json as json_of
from evict_profile.io import check_folder, say

if TYPE_CHECKING:
    from evict_profile.served.run import Run


def import_runs(
    runs: list[str] = Argument(
        metavar="RUNS...",
        help="Runs of one server: files of `probe`, a benchmark or a log, a CSV, or "
        "FILE=K where the file does not state K.",
    ),
    model: str = Option(help="Model that was served, any name."),
    gpu: str = Option(help="GPU that served, any name."),
    shape: Path | None = Option(
        None,
        callback=options.valid_table,
        help="Cost table (.json) whose growth carries the runs to other K.",
        show_default="the growth of public servers",
    ),
    tables: options.Tables = Path("cost_tables"),
    as_json: options.AsJson = False,
) -> None:
    """Make a table of what a server's runs took.

    It is written as the next version of the table of that server.
    """
    files = files_and_drafts(runs)
    check_folder(tables)
    from evict_profile.config.load import model_label
    from evict_profile.report.console import print_notes
    from evict_profile.report.served import runs_document, show_runs
    from evict_profile.served.make import assumed, save_served, served_table, shape_of
    from evict_profile.table import CostTable

    runs_read, left_out, notes = read_files(files)
    growth = shape_of(CostTable.load(shape)) if shape else None
    if not as_json:
        # Before a refusal too: what speaks against the runs may be its reason.
        show_runs(console, runs_read, left_out)
    table = served_table(runs_read, left_out, model_label(model), gpu, growth)
    path = save_served(table, tables)
    stated = any(s.is_chain and s.drafts and s.accept_length for s in table.settings)
    advice = f"evict-profile advise {quote(str(path))}" * stated
    if as_json:
        document = {"table": str(path), "next": advice or None}
        say(console, json_of(document | runs_document(runs_read, left_out)))
        return
    print_notes(console, [*notes, *assumed(table)])
    say(console, f"table: {path}")
    if advice:
        say(console, f"next: {advice}")


def read_files(
    files: Sequence[tuple[Path, int | None]],
) -> tuple[list["Run"], dict[str, str], list[str]]:
    from evict_profile.served.readers import read

    logs = [read(path, drafts) for path, drafts in files]
    runs = [run for log in logs for run in log.runs]
    left_out = {k: why for log in logs for k, why in log.left_out.items()}
    left_out |= {run.source: NO_STEP for run in runs if not run.step_us}
    return runs, left_out, [note for log in logs for note in log.notes]


NO_STEP = "it states no step"


def files_and_drafts(words: Sequence[str]) -> list[tuple[Path, int | None]]:
    files = dict[Path, int | None]()
    for word in words:
        name, is_given, drafts = word.rpartition("=")
        path, k = (Path(name), drafts) if is_given else (Path(word), "")
        if is_given and Path(word).is_file():
            path, k = Path(word), ""
        if k and not k.isdecimal():
            raise ConfigError(f"{word}: K must be a whole number, as {path}=3")
        if path in files:
            raise ConfigError(f"{path}: is named twice; name each file once")
        files[path] = int(k) if k else None
    return list(files.items())
