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
from evict_profile.records import replace

if TYPE_CHECKING:
    from evict_profile.served.readers import FileRuns
    from evict_profile.served.run import Run


def import_runs(
    runs: list[str] = Argument(
        metavar="RUNS...",
        help="Runs of one server: files of `probe`, a benchmark or a log, a CSV, a "
        "table, or FILE=K if the file does not state K; FILE=K:TEXT names its text.",
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

    It is written as the next version of the table of that server, unless a version
    has the same runs.
    """
    files = files_and_drafts(runs)
    check_folder(tables)
    from evict_profile.config.load import model_label
    from evict_profile.report.console import print_notes
    from evict_profile.report.served import followed, runs_document, show_runs
    from evict_profile.served.make import assumed, served_table, shape_of
    from evict_profile.served.search import as_spelled, versions_of
    from evict_profile.table import CostTable
    from evict_profile.table.store import save_next

    runs_read, left_out, notes = read_files(files)
    growth = shape_of(CostTable.load(shape)) if shape else None
    if not as_json:
        # Before a refusal too: what speaks against the runs may be its reason.
        show_runs(console, runs_read, left_out)
    label = model_label(model)
    table = as_spelled(served_table(runs_read, left_out, label, gpu, growth), tables)
    if (label, gpu) != (named := (table.key.model, table.key.gpu)):
        notes.append(f"{label} on {gpu} is {' on '.join(named)}, as tables name it")
    home = table.home_in(tables)
    before = versions_of(table.key, home)
    same = next((each for each in before if each.has_same(table)), None)
    path = same.path if same else save_next(table, home)[1]
    stated = any(s.is_chain and s.drafts and s.accept_length for s in table.settings)
    advice = f"evict-profile advise {quote(str(path))}" * stated
    if as_json:
        document = {"table": str(path), "next": advice or None}
        say(console, json_of(document | runs_document(runs_read, left_out)))
        return
    if before and not same:
        notes.append(followed(before[-1], table, path))
    print_notes(console, [*notes, *assumed(table)])
    if same:
        newer = f", and {before[-1].path.name} is newer" * (same is not before[-1])
        say(console, f"nothing new: {path} has these runs{newer}")
    else:
        say(console, f"table: {path}")
    if advice:
        say(console, f"next: {advice}")


def read_files(
    files: Sequence[tuple[Path, int | None, str]],
) -> tuple[list["Run"], dict[str, str], list[str]]:
    from evict_profile.served.readers import read

    logs, refused = list["FileRuns"](), list[tuple[Path, ConfigError]]()
    for path, drafts, _ in files:
        try:
            logs.append(read(path, drafts))
        except ConfigError as error:
            refused.append((path, error))
    if refused:
        (_, first), *others = refused
        also = ", ".join(str(path) for path, _ in others)
        raise ConfigError(f"{first}; also refused: {also}" if also else str(first))
    runs = list["Run"]()
    for log, (_, _, text) in zip(logs, files, strict=True):
        # A table and the file that it was made of have runs in common.
        runs += [r for run in log.runs if (r := _of_text(run, text)) not in runs]
    left_out = {k: why for log in logs for k, why in log.left_out.items()}
    left_out |= {run.source: NO_STEP for run in runs if not run.step_us}
    return runs, left_out, [note for log in logs for note in log.notes]


NO_STEP = "it states no step, as a log whose requests change from line to line"


def _of_text(run: "Run", text: str) -> "Run":
    if text and run.text not in ("", text):
        raise ConfigError(
            f"{run.source}: states the text {run.text}, and {text} was given; give the "
            "file without a text"
        )
    return replace(run, text=text or run.text)


def files_and_drafts(words: Sequence[str]) -> list[tuple[Path, int | None, str]]:
    """Each file, with the K and the text that are typed as FILE=K:TEXT."""
    files = dict[Path, tuple[int | None, str]]()
    for word in words:
        name, is_given, about = word.rpartition("=")
        path, about = (Path(name), about) if is_given else (Path(word), "")
        if is_given and Path(word).is_file():
            path, about = Path(word), ""
        k, _, text = about.partition(":")
        if k and not k.isdecimal():
            raise ConfigError(f"{word}: K must be a whole number, as {path}=3")
        if path in files:
            raise ConfigError(f"{path}: is named twice; name each file once")
        files[path] = int(k) if k else None, text
    return [(path, *about) for path, about in files.items()]
