"""Commands about traces and expert budgets: record, learn, replay, recommend."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from evict_profile.cli.options import (
    Depth,
    Json,
    Nodes,
    Part,
    Prompts,
    Python,
    Tokens,
    Topk,
    TracedTable,
    Traces,
    Workloads,
    World,
    console,
)
from evict_profile.errors import ConfigError
from evict_profile.io import check_folder, check_outputs, parse_share, say, write_text


def trace(
    world: World,
    out: Annotated[Path, typer.Option(help="The trace file (.parquet).")],
    prompts: Prompts = 24,
    tokens: Tokens = 64,
    temperature: Annotated[
        list[float] | None, typer.Option(help="Repeatable.", show_default="0.0")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Replies a prompt, if it is > 0.")] = 1,
    depth: Depth = 5,
    topk: Topk = 8,
    nodes: Nodes = 60,
    batch: Annotated[
        list[int] | None,
        typer.Option(help="Times whole steps; repeatable.", show_default="1, 4, 16"),
    ] = None,
    workload: Workloads = None,
    python: Python = None,
) -> None:
    """Record draft trees and what was accepted; the same command again continues."""
    from evict_profile.traces.record import TracePlan, record

    _check_parquet(out)
    plan = TracePlan(
        prompts=prompts,
        tokens=tokens,
        seeds=seeds,
        temperatures=tuple(temperature or TracePlan.temperatures),
        workloads=tuple(workload or TracePlan.workloads),
        batches=tuple(batch or TracePlan.batches),
        depth=depth,
        topk=topk,
        nodes=nodes,
    )
    record(world, out, plan, console, python)


def calibrate(
    traces: Traces,
    table: TracedTable,
    tables: Annotated[
        Path | None, typer.Option(help="Tree to export into; else beside the table.")
    ] = None,
    workload: Annotated[
        str | None, typer.Option(help="Only this workload of the trace.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Only this temperature of the trace.")
    ] = None,
    part: Part = "1/1",
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path(
        "calibration.html"
    ),
) -> None:
    """Learn acceptance and activation from a trace, into the table's next version."""
    from evict_profile.calibrate.study import calibrated_table, study
    from evict_profile.fit.export import export_workload
    from evict_profile.report.calibration_page import page, show_study
    from evict_profile.table import CostTable, files_of
    from evict_profile.traces import load_traces
    from evict_profile.traces.trace import check_one_temperature

    check_outputs([out], [traces, *files_of(table)])
    check_folder(tables or table.parent)
    before, own = CostTable.load(table), parse_share("--part", part)
    trace = load_traces(traces).only(workload, temperature).part(*own)
    check_one_temperature(trace)
    found = study(trace, before)
    show_study(console, found, before.model)
    made, path = export_workload(calibrated_table(found, before), table, tables)
    say(console, f"table: {path}")
    write_text(page(found, made), out)
    say(console, f"page: {out}")


def replay(
    table: TracedTable,
    traces: Annotated[
        Path | None, typer.Argument(help="A .parquet, or a folder of parts.")
    ] = None,
    synthetic: Annotated[
        str, typer.Option(help="In place of a trace: easy, hard, bursts ...")
    ] = "",
    batch: Annotated[
        list[int] | None, typer.Option(help="Repeatable.", show_default="1")
    ] = None,
    workload: Workloads = None,
    temperature: Annotated[
        list[float] | None, typer.Option(help="Repeatable.", show_default="all")
    ] = None,
    part: Part = "1/1",
    seeds: Annotated[int, typer.Option(help="Orders of replies.")] = 5,
    other_table: Annotated[
        Path | None, typer.Option(help="Another device's, to be misled by.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("replay.html"),
    json_out: Json = None,
) -> None:
    """Does speculation pay, and does adapting? Policies on one trace and table."""
    from evict_profile.replay.study import ReplayOptions, study
    from evict_profile.report.replay_page import page, show_study
    from evict_profile.table import files_of

    priced_by = [*files_of(table), *files_of(other_table or table)]
    outputs = [path for path in (out, json_out) if path]
    check_outputs(outputs, [*([traces] if traces else []), *priced_by])
    options = ReplayOptions(
        traces,
        table,
        batches=batch or [1],
        workloads=workload or [],
        temperatures=temperature or [],
        part=part,
        seeds=seeds,
        other_table=other_table,
        synthetic=synthetic,
    )
    on_stderr = Console(stderr=True)
    found = study(options, lambda text: say(on_stderr, text))
    show_study(console, found)
    _write(page(found), out, found.as_json, json_out)


def budget(
    recordings: Annotated[
        list[Path], typer.Argument(help="Of budgets; several may differ in rules.")
    ],
    table: Annotated[Path, typer.Option(help="Cost table of the model recorded.")],
    workload: Workloads = None,
    kl: Annotated[
        float | None, typer.Option(help="Keep KL under this, nats a token.")
    ] = None,
    agreement: Annotated[
        float | None,
        typer.Option(help="Keep agreement above.", show_default="0.98, if none is set"),
    ] = None,
    loss: Annotated[
        float | None, typer.Option(help="Keep excess loss under, nats a token.")
    ] = None,
    accept: Annotated[
        float | None, typer.Option(help="Keep accept length over none's above.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("budget.html"),
    json_out: Json = None,
) -> None:
    """Expected speed against quality loss under expert budgets, and which to run."""
    from evict_profile.budgets.study import Bounds, study
    from evict_profile.report.budgets_page import page, show_study
    from evict_profile.table import files_of

    outputs = [path for path in (out, json_out) if path]
    check_outputs(outputs, [*recordings, *files_of(table)])
    bounds = Bounds(kl, agreement, loss, accept)
    result = study(recordings, table, workload or [], bounds)
    show_study(console, result)
    _write(page(result), out, result.as_json, json_out)


def trace_budgets(
    world: World,
    out: Annotated[Path, typer.Option(help="The recording (.parquet).")],
    prompts: Prompts = 16,
    tokens: Tokens = 64,
    budget: Annotated[
        list[int] | None,
        typer.Option(
            help="Experts a layer may activate; repeatable.",
            show_default="2 to 12 times what a token runs",
        ),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            help="How they are chosen; repeatable.",
            show_default="mass, sqrt-path+top-k",
        ),
    ] = None,
    depth: Depth = 5,
    topk: Topk = 8,
    nodes: Nodes = 60,
    workload: Workloads = None,
    python: Python = None,
) -> None:
    """Record replies under expert budgets, and how far they are off."""
    from evict_profile.budgets.plan import BudgetPlan
    from evict_profile.budgets.record import BudgetRecording
    from evict_profile.traces.recording import carry_out

    _check_parquet(out)
    plan = BudgetPlan(
        prompts=prompts,
        tokens=tokens,
        budgets=tuple(budget or ()),
        rules=tuple(rule or ()),
        workloads=tuple(workload or ()),
        depth=depth,
        topk=topk,
        nodes=nodes,
    )
    carry_out(BudgetRecording, world, out, plan, console, python)


def _check_parquet(out: Path) -> None:
    if out.suffix != ".parquet":
        fix = f"name it {out.with_suffix('.parquet')}" if out.name else "name one"
        raise ConfigError(f"--out {out}: a recording is a .parquet file; {fix}")


def _write(
    page: str, out: Path, as_json: Callable[[], str], json_out: Path | None
) -> None:
    """Write a report, and all its numbers where asked."""
    write_text(page, out)
    say(console, f"report: {out}")
    if json_out:
        write_text(as_json(), json_out)
        say(console, f"numbers: {json_out}")
