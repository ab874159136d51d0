"""Commands about traces and expert budgets: record, learn, replay, recommend."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from typer import Argument, Context, Option

from evict_profile.cli import options
from evict_profile.cli.options import check_read, console, stderr
from evict_profile.errors import ConfigError
from evict_profile.io import check_folder, check_outputs, parse_share, say, write_text


def trace(
    ctx: Context,
    world: Path = Argument(help="A small world: worlds/stdlib."),
    out: Path = Option(help="The folder of the recording."),
    prompts: int = Option(24, min=1, help="Prompts of each workload."),
    tokens: int = Option(64, min=1, help="Tokens of each reply."),
    workload: options.Workloads = None,
    temperature: list[float] = Option([0.0], help="Repeatable."),
    seeds: int = Option(1, min=1, help="Replies a prompt, if it is > 0."),
    batch: list[int] = Option([1, 4, 16], min=1, help="Times whole steps; repeatable."),
    depth: int = Option(5, min=1, help="Levels of a draft tree."),
    topk: int = Option(8, min=1, help="Nodes expanded a level."),
    nodes: int = Option(60, min=1, help="Nodes verified at most."),
    budget: list[int] = Option(
        [], help="In place of trees: replies whose layers run so few experts."
    ),
    python: options.Python = None,
) -> None:
    """Record draft trees and what was accepted; the same command again continues."""
    from evict_profile.budgets.record import BudgetPlan
    from evict_profile.traces.record import TracePlan
    from evict_profile.traces.recording import RecordingPlan, record

    shared: dict[str, Any] = {
        "prompts": prompts,
        "tokens": tokens,
        "workloads": tuple(dict.fromkeys(workload or ())),
        "depth": depth,
        "topk": topk,
        "nodes": nodes,
    }
    plan: RecordingPlan
    if budget:
        check_read(ctx, {"seeds", "temperature", "batch"}, "with --budget")
        plan = BudgetPlan(budgets=tuple(dict.fromkeys(budget)), **shared)
    else:
        if not any(temperature):
            check_read(ctx, {"seeds"}, "at temperature 0")
        plan = TracePlan(
            seeds=seeds,
            temperatures=tuple(dict.fromkeys(temperature)),
            batches=tuple(dict.fromkeys(batch)),
            **shared,
        )
    record(plan, world, out, console, python)


def calibrate(
    table: Path | None = Option(
        None,
        callback=options.whole_table,
        help="Cost table of the model traced; else one of a probed server is made.",
    ),
    traces: Path | None = Argument(
        None, exists=True, help="A .parquet, or a folder of parts."
    ),
    served: list[str] | None = Option(
        None, help="In place of a trace: runs: of probe, CSV or FILE=K; repeatable."
    ),
    tables: Path | None = Option(
        None, help="Tree to export into; else beside --table, or cost_tables."
    ),
    model: str | None = Option(None, help="Of a probed server, without --table."),
    gpu: str | None = Option(None, help="It runs on, likewise."),
    workload: options.Workloads = None,
    temperature: float | None = Option(None, help="And only this temperature."),
    part: options.Part = "1/1",
    out: options.Page = Path("calibration.html"),
) -> None:
    """Learn from a trace or a server's runs, into the table's next version."""
    from evict_profile.calibrate.study import calibrated_table, calibration_study
    from evict_profile.fit.export import export_workload
    from evict_profile.report.calibration_page import calibration_page, show_calibration
    from evict_profile.table import CostTable, files_of
    from evict_profile.traces import load_traces
    from evict_profile.traces.trace import check_one_temperature

    if bool(served) == bool(traces):
        raise ConfigError("give either traces or --served, a server's runs")
    check_folder(tables or (table.parent if table else Path("cost_tables")))
    if table and (model or gpu):
        raise ConfigError(
            "--table says the model and the GPU; leave --model, --gpu out"
        )
    if not traces:
        if workload or temperature is not None or part != "1/1":
            raise ConfigError("--workload, --temperature and --part are of traces")
        if table:
            _calibrate_served(table, served or [], tables)
        else:
            _served_table(served or [], model, gpu, tables or Path("cost_tables"))
        return
    if not table:
        raise ConfigError("--table is missing: the cost table of the model traced")
    check_outputs([out], [traces, *files_of(table)])
    before, own = CostTable.load(table), parse_share("--part", part)
    temperatures = [] if temperature is None else [temperature]
    trace = load_traces(traces).only(workload or [], temperatures).part(*own)
    check_one_temperature(trace)
    found = calibration_study(trace, before)
    show_calibration(console, found, before)
    made, path = export_workload(calibrated_table(found, before), table, tables)
    say(console, f"table: {path}")
    write_text(calibration_page(found, made), out)
    say(console, f"page: {out}")


def _calibrate_served(path: Path, served: list[str], tables: Path | None) -> None:
    """Learn what a server's steps take beside a table's costs."""
    from evict_profile.calibrate.probed import check_servers, settings
    from evict_profile.calibrate.runs import doubts, read_runs
    from evict_profile.calibrate.served import study
    from evict_profile.fit.export import export_workload
    from evict_profile.records import replace
    from evict_profile.report.served import show_served
    from evict_profile.table import CostTable

    warn, files = partial(say, stderr), dict(map(_named_runs, served))
    table = CostTable.load(path)
    own = [f for f, drafts in files.items() if f.suffix == ".jsonl" and drafts is None]
    check_servers([each for file in own for each in settings(file)], table.model.name)
    runs = [run for each in files for run in read_runs(each, files[each], warn)]
    for sentence in doubts(runs):
        warn(sentence)
    found = study(table, runs, ", ".join(file.name for file in files))
    show_served(console, found)
    made = replace(table, overheads=found.found)
    say(console, f"table: {export_workload(made, path, tables)[1]}")


def _served_table(
    served: list[str], model: str | None, gpu: str | None, tables: Path
) -> None:
    """Make a table of the whole steps of a probed server."""
    from evict_profile.calibrate.probed import settings
    from evict_profile.calibrate.served_table import export_served, served_table
    from evict_profile.config import load_model
    from evict_profile.report.served import show_settings

    if not (model and gpu):
        raise ConfigError(
            "--table names the cost table of the server; without one, --model and "
            "--gpu say what was probed, and --served a file of 'evict-profile probe'"
        )
    found = [each for file in served for each in settings(Path(file))]
    show_settings(console, found)
    table = served_table(found, gpu, load_model(model))
    say(console, f"table: {export_served(table, found, tables)}")


def _named_runs(word: str) -> tuple[Path, int | None]:
    """A file of runs, and K where the word ends with it."""
    name, _, drafts = word.rpartition("=")
    return (Path(name), int(drafts)) if drafts.isdecimal() else (Path(word), None)


def replay(
    table: options.TracedTable,
    traces: Path | None = Argument(
        None, exists=True, help="A .parquet, or a folder of parts."
    ),
    synthetic: str = Option("", help="In place of a trace: easy, hard, bursts ..."),
    batch: list[int] = Option([1], min=1, help="Repeatable."),
    workload: options.Workloads = None,
    temperature: list[float] | None = Option(
        None, help="Repeatable.", show_default="all"
    ),
    part: options.Part = "1/1",
    seeds: int = Option(5, min=1, help="Orders of replies."),
    out: options.Page = Path("replay.html"),
    json_out: options.Json = None,
) -> None:
    """Does speculation pay, and does adapting? Policies on one trace and table."""
    from evict_profile.replay.study import replay_study, replayed_trace
    from evict_profile.report.replay_page import replay_page, show_replay
    from evict_profile.table import CostTable, files_of

    check_outputs([out, json_out], [traces, *files_of(table)])
    covered, own = CostTable.load(table), parse_share("--part", part)
    chosen = replayed_trace(
        traces, synthetic, covered, workload or [], temperature or [], own
    )
    batches = list(dict.fromkeys(batch))
    found = replay_study(chosen, covered, batches, seeds, partial(say, stderr))
    show_replay(console, found)
    _write(replay_page(found), out, found.as_json, json_out)


def budget(
    recording: Path = Argument(exists=True, help="Of 'trace --budget'."),
    table: Path = Option(
        callback=options.whole_table, help="Cost table of the model recorded."
    ),
    workload: options.Workloads = None,
    agreement: float = Option(0.98, help="Share of tokens that must stay likeliest."),
    out: options.Page = Path("budget.html"),
    json_out: options.Json = None,
) -> None:
    """Speed against quality under expert budgets, and which to run."""
    from evict_profile.budgets.front import budget_front
    from evict_profile.report.budgets_page import page, show_front
    from evict_profile.table import CostTable, files_of

    check_outputs([out, json_out], [recording, *files_of(table)])
    found = budget_front(recording, CostTable.load(table), workload or [], agreement)
    show_front(console, found)
    _write(page(found), out, found.as_json, json_out)


def _write(
    page: str, out: Path, as_json: Callable[[], str], json_out: Path | None
) -> None:
    """Write a report, and all its numbers where asked."""
    write_text(page, out)
    say(console, f"report: {out}")
    if json_out:
        write_text(as_json(), json_out)
        say(console, f"numbers: {json_out}")
