"""The command that calibrates a cost table by a trace or by runs of a server."""

from pathlib import Path

from typer import Argument, Context, Option

from evict_profile.cli import options
from evict_profile.cli.options import console, reject_unused, stderr
from evict_profile.errors import ConfigError
from evict_profile.io import check_folder, check_outputs, parse_share, say, write_text


def calibrate(
    ctx: Context,
    table: Path | None = Argument(
        None,
        callback=options.valid_table,
        help="Cost table (.json). Without it, --served builds a new table.",
    ),
    traces: options.Traces = None,
    served: list[str] | None = Option(
        None,
        help="Runs of a server instead of a trace: a file of `probe` (.jsonl), a CSV, "
        "or FILE=K; repeatable.",
    ),
    tables: Path | None = Option(
        None,
        help="Folder to export the table into.",
        show_default="beside the table, or cost_tables",
    ),
    model: str | None = Option(
        None, help="Model that was served, any name. Needed without a table."
    ),
    gpu: str | None = Option(
        None, help="GPU that served, any name. Needed without a table."
    ),
    workload: options.Workloads = None,
    temperature: float | None = Option(
        None,
        help="Use only the steps recorded at this temperature.",
        show_default="all, if they have one",
    ),
    part: options.Part = "1/1",
    out: options.Page = Path("calibration.html"),
) -> None:
    """Calibrate a table by a trace or by runs of a server.

    The table is written as its next version.
    """
    if bool(served) == bool(traces):
        raise ConfigError("give either traces or --served, a server's runs")
    check_folder(tables or (table.parent if table else Path("cost_tables")))
    if table:
        reject_unused(ctx, {"model", "gpu"}, "with a table")
    if not traces:
        reject_unused(ctx, {"workload", "temperature", "part"}, "with --served")
        if table:
            _calibrate_by_runs(table, served or [], tables)
        else:
            _table_of_runs(served or [], model, gpu, tables or Path("cost_tables"))
        return
    assert table, "an argument before the traces"
    temperatures = [] if temperature is None else [temperature]
    choice = workload or [], temperatures, parse_share("--part", part)
    _calibrate_by_trace(table, traces, choice, tables, out)


def _calibrate_by_trace(
    path: Path,
    traces: Path,
    choice: tuple[list[str], list[float], tuple[int, int]],
    tables: Path | None,
    out: Path,
) -> None:
    """Learn acceptance, activation and drafting from the chosen steps of a trace."""
    from evict_profile.calibrate.study import calibrated_table, calibration_study
    from evict_profile.fit.export import export_workload
    from evict_profile.report.calibration_page import calibration_page, show_calibration
    from evict_profile.table import CostTable, files_of
    from evict_profile.traces import load_traces
    from evict_profile.traces.trace import check_one_temperature

    check_outputs([out], [traces, *files_of(path)])
    workloads, temperatures, part = choice
    before = CostTable.load(path)
    trace = load_traces(traces).only(workloads, temperatures).part(*part)
    check_one_temperature(trace)
    found = calibration_study(trace, before)
    show_calibration(console, found, before)
    made, written = export_workload(calibrated_table(found, before), path, tables)
    say(console, f"table: {written}")
    write_text(calibration_page(found, made), out)
    say(console, f"page: {out}")


def _calibrate_by_runs(path: Path, served: list[str], tables: Path | None) -> None:
    """Learn what a server's steps take beside a table's costs."""
    from evict_profile.advice.check import findings
    from evict_profile.calibrate.activation import routed_curve
    from evict_profile.calibrate.probed import check_servers
    from evict_profile.calibrate.runs import read_settings
    from evict_profile.calibrate.served import study
    from evict_profile.fit.export import export_workload, with_workload
    from evict_profile.records import replace
    from evict_profile.report.served import show_served
    from evict_profile.table import CostTable

    files = dict(map(_file_and_drafts, served))
    table = CostTable.load(path)
    own = [f for f, drafts in files.items() if f.suffix == ".jsonl" and drafts is None]
    if curve := routed_curve(own, table):
        table = with_workload(table, table.acceptance, curve, None)
        say(console, f"activation: {curve.workload}")
    settings = read_settings(files, optional=bool(curve))
    check_servers(settings, table.model.name)
    runs = [run for each in settings for run in each.runs]
    for said in findings(settings, []):
        say(stderr, said)
    if runs:
        found = study(table, runs, ", ".join(file.name for file in files))
        show_served(console, found)
        table = replace(table, overheads=found.found)
    say(console, f"table: {export_workload(table, path, tables)[1]}")


def _table_of_runs(
    served: list[str], model: str | None, gpu: str | None, tables: Path
) -> None:
    """Make a table of the decode steps of a server."""
    from evict_profile.advice.check import findings
    from evict_profile.calibrate.runs import read_settings
    from evict_profile.calibrate.served_table import (
        export_served,
        served_table,
        shape_of,
    )
    from evict_profile.report.served import show_settings

    if not (model and gpu):
        raise ConfigError(
            "give the cost table of the server before --served; without one, --model "
            "and --gpu name what served"
        )
    files = dict(map(_file_and_drafts, served))
    found = read_settings(files)
    show_settings(console, found)
    table = served_table(found, gpu, shape_of(model))
    path = export_served(table, found, tables)
    for said in findings(found, []):
        say(stderr, said)
    say(console, f"table: {path}")
    drafting = [each for each in found if each.server.drafts]
    if all(each.states_accepted for each in drafting):
        lengths = {each.server.drafts: f"{each.committed:.2f}" for each in drafting}
        accept = ",".join(f"{k}:{length}" for k, length in sorted(lengths.items()))
        say(console, f"next: evict-profile advise {path} --accept {accept}")


def judge_runs(words: list[str]) -> bool:
    """Print what speaks against runs, and what is unknown; whether anything does."""
    from evict_profile.advice.check import findings, unknown
    from evict_profile.advice.server_log import read_log
    from evict_profile.calibrate.runs import read_settings
    from evict_profile.report.console import wrapped

    files = dict(map(_file_and_drafts, words))
    logs = {file: log for file in files if file.is_file() and (log := read_log(file))}
    found = read_settings({file: files[file] for file in files if file not in logs})
    said = [*findings(found, [*logs.values()])]
    for line in said or ["Nothing was found that speaks against these runs."]:
        say(console, wrapped(line, "  "))
    if missing := ", ".join(unknown(found, [*logs.values()])):
        say(console, wrapped(f"Not known from these files: {missing}.", "  "))
    return bool(said)


def _file_and_drafts(word: str) -> tuple[Path, int | None]:
    """Read FILE or FILE=K."""
    name, _, drafts = word.rpartition("=")
    return (Path(name), int(drafts)) if drafts.isdecimal() else (Path(word), None)
