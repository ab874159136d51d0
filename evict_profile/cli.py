"""The `evict-profile` command. Each command is a few calls into the layers below."""

import errno
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from evict_profile import __version__
from evict_profile.errors import EvictProfileError, Interrupted
from evict_profile.terminal import say

USER_ERROR = 2
INTERRUPTED = 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Measure what verifying a draft tree costs on a mixture-of-experts model.",
)
console = Console()

Model = Annotated[str, typer.Option(help="Model name, its YAML, or a HF config.json.")]
SweepName = Annotated[str, typer.Option("--sweep", help="Sweep name, or its YAML.")]
Out = Annotated[Path | None, typer.Option(help="Run folder; else runs/MODEL/SWEEP.")]
Layers = Annotated[int | None, typer.Option(help="MoE layers to measure; else auto.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
Dtype = Annotated[str | None, typer.Option(help="bfloat16 or float32.")]
PlanKind = Annotated[str | None, typer.Option("--plan", help="grid or adaptive.")]
Minutes = Annotated[float, typer.Option(help="Stop measuring after this long.")]
Python = Annotated[str | None, typer.Option(help="Interpreter that runs the engine.")]
Shard = Annotated[str, typer.Option(help="Measure shard i of n, as i/n.")]
Part = Annotated[str, typer.Option(help="Only part i of n of the prompts, as i/n.")]
Run = Annotated[Path, typer.Argument(help="Run folder of a sweep.")]
TableFile = Annotated[Path, typer.Argument(help="A cost table (.json).")]
Tables = Annotated[Path, typer.Option(help="Tree of tables to export into.")]


@app.command()
def profile(
    model: Model = "qwen3-30b-a3b",
    sweep_name: SweepName = "demo",
    out: Out = None,
    tables: Tables = Path("cost_tables"),
    layers: Layers = None,
    device: Device = None,
    dtype: Dtype = None,
    plan: PlanKind = None,
    max_minutes: Minutes = float("inf"),
    python: Python = None,
) -> None:
    """Sweep, fit, export a cost table and write its report."""
    from evict_profile.fit.export import export_table
    from evict_profile.fit.fitted import fit_run
    from evict_profile.profile import Ask, run_folder, sweep_model, what_was_made
    from evict_profile.report.page import write_report
    from evict_profile.summary import show_fit

    ask = Ask(model, sweep_name, layers, device, dtype, plan, python, max_minutes)
    store = run_folder(ask, out)
    sweep_model(ask, store, console)
    fitted = fit_run(store)
    show_fit(console, fitted)
    table, path = export_table(fitted, tables)
    page = store.folder / "report.html"
    write_report(fitted, table, page)
    what_was_made(console, table, path, page)


@app.command()
def sweep(
    model: Model = "qwen3-30b-a3b",
    sweep_name: SweepName = "demo",
    out: Out = None,
    layers: Layers = None,
    device: Device = None,
    dtype: Dtype = None,
    plan: PlanKind = None,
    max_minutes: Minutes = float("inf"),
    shard: Shard = "1/1",
    python: Python = None,
) -> None:
    """Measure cells; the same command again continues where it stopped."""
    from evict_profile.profile import Ask, run_folder, sweep_model

    ask = Ask(
        model, sweep_name, layers, device, dtype, plan, python, max_minutes, shard
    )
    sweep_model(ask, run_folder(ask, out), console)


@app.command()
def merge(
    shards: Annotated[list[Path], typer.Argument(help="Run folders of the shards.")],
    out: Annotated[Path, typer.Option(help="Folder of the merged run.")],
) -> None:
    """Put the shards of one sweep together."""
    from evict_profile.sweep.store import Store, merge

    merge([Store(folder) for folder in shards], Store(out))
    say(console, f"merged {len(shards)} shards into {out}")


@app.command()
def fit(run: Run) -> None:
    """Fit a run; print its held-out error, its rivals and its gates."""
    from evict_profile.fit.fitted import fit_run
    from evict_profile.summary import show_fit
    from evict_profile.sweep.store import Store

    show_fit(console, fit_run(Store(run)))


@app.command()
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
    if format_name:
        from evict_profile.integrations.formats import write_format
        from evict_profile.table import load_table

        path = out or Path(f"{format_name}.json")
        note = write_format(load_table(source), format_name, path, context, draft_ms)
        say(console, note)
        say(console, f"{format_name}: {path}")
        return
    from evict_profile.fit.export import export_run

    _, path = export_run(source, tables)
    say(console, f"table: {path}")


@app.command()
def trace(
    world: Annotated[Path, typer.Argument(help="A small world: worlds/stdlib.")],
    out: Annotated[Path, typer.Option(help="The trace file (.parquet).")],
    prompts: Annotated[int, typer.Option(help="Prompts of each workload.")] = 24,
    tokens: Annotated[int, typer.Option(help="Tokens of each reply.")] = 64,
    temperature: Annotated[
        list[float] | None, typer.Option(help="Repeatable.", show_default="0.0")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Replies a prompt, if it is > 0.")] = 1,
    depth: Annotated[int, typer.Option(help="Levels of a draft tree.")] = 5,
    fan: Annotated[int, typer.Option(help="Nodes expanded a level.")] = 8,
    nodes: Annotated[int, typer.Option(help="Nodes verified at most.")] = 60,
    batch: Annotated[
        list[int] | None,
        typer.Option(help="Times whole steps; repeatable.", show_default="1, 4, 16"),
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option(help="Repeatable.", show_default="all")
    ] = None,
    python: Python = None,
) -> None:
    """Record draft trees and what was accepted; the same command again continues."""
    from evict_profile.traces.plan import Plan
    from evict_profile.traces.record import record

    plan = Plan(
        prompts=prompts,
        tokens=tokens,
        seeds=seeds,
        temperatures=tuple(temperature or Plan.temperatures),
        workloads=tuple(workload or Plan.workloads),
        batches=tuple(batch or Plan.batches),
        depth=depth,
        fan=fan,
        nodes=nodes,
    )
    record(world, out, plan, console, python)


@app.command()
def calibrate(
    traces: Annotated[Path, typer.Argument(help="A trace file (.parquet).")],
    table: Annotated[Path, typer.Option(help="Cost table of the model traced.")],
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
    """Learn acceptance and union growth from a trace, into the table's next version."""
    from evict_profile.calibrate.console import show_study
    from evict_profile.calibrate.page import write_page
    from evict_profile.calibrate.study import calibrated_table, study
    from evict_profile.files import require_writable
    from evict_profile.fit.workload import export_workload
    from evict_profile.share import parse_share
    from evict_profile.table import load_table
    from evict_profile.traces import load_traces

    require_writable(out)
    before, own = load_table(table), parse_share("--part", part)
    trace = load_traces(traces).only(workload, temperature).part(*own)
    found = study(trace, before)
    show_study(console, found, before.model)
    made, path = export_workload(calibrated_table(found, before), table, tables)
    say(console, f"table: {path}")
    write_page(found, made, out)
    say(console, f"page: {out}")


@app.command()
def replay(
    traces: Annotated[Path, typer.Argument(help="A trace file (.parquet).")],
    table: Annotated[Path, typer.Option(help="Cost table of the model traced.")],
    batch: Annotated[
        list[int] | None, typer.Option(help="Repeatable.", show_default="1")
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option(help="Repeatable.", show_default="all")
    ] = None,
    temperature: Annotated[
        list[float] | None, typer.Option(help="Repeatable.", show_default="all")
    ] = None,
    part: Part = "1/1",
    seeds: Annotated[int, typer.Option(help="Orders of replies.")] = 5,
    other_table: Annotated[
        Path | None, typer.Option(help="Another device's, to be misled by.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("replay.html"),
    json_out: Annotated[
        Path | None, typer.Option("--json", help="All numbers as JSON.")
    ] = None,
) -> None:
    """Does speculation pay, and does adapting? Policies on one trace and table."""
    from evict_profile.files import require_writable, write_atomically
    from evict_profile.replay.show import show_study
    from evict_profile.replay.study import Ask, study
    from evict_profile.report.replay_page import write_page

    for path in filter(None, (out, json_out)):
        require_writable(path)
    ask = Ask(
        traces,
        table,
        batches=batch or [1],
        workloads=workload or [],
        temperatures=temperature or [],
        part=part,
        seeds=seeds,
        other_table=other_table,
    )
    on_stderr = Console(stderr=True)
    found = study(ask, lambda text: say(on_stderr, text))
    show_study(console, found)
    write_page(found, out)
    say(console, f"report: {out}")
    if json_out:
        write_atomically(json_out, lambda path: path.write_text(found.as_json()))
        say(console, f"numbers: {json_out}")


@app.command()
def report(
    table: TableFile,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Write the report of a table as one HTML file."""
    from evict_profile.fit.from_table import fitted_of_table
    from evict_profile.report.page import write_report

    fitted, loaded = fitted_of_table(table)
    write_report(fitted, loaded, out)
    say(console, f"report: {out}")


@app.command()
def show(table: TableFile) -> None:
    """Print a table on one screen."""
    from evict_profile.summary import show_table
    from evict_profile.table import load_table

    show_table(console, load_table(table))


@app.command()
def diff(before: TableFile, after: TableFile) -> None:
    """Print what differs between two tables; exit code 1 if anything does."""
    from evict_profile.summary import show_diff
    from evict_profile.table import load_table

    if show_diff(console, load_table(before), load_table(after)):
        raise typer.Exit(1)
    say(console, "no difference in key, costs or error")


@app.command()
def check(
    table: TableFile,
    recheck: Annotated[
        bool, typer.Option("--recheck", help="Measure a few cells again.")
    ] = False,
    python: Python = None,
) -> None:
    """Check a table's hash, samples and gates; exit code 1 if any fails or drifted."""
    from evict_profile.fit.from_table import fitted_of_table
    from evict_profile.summary import show_gates

    fitted, loaded = fitted_of_table(table)
    say(console, f"{table}: schema, hash and samples are whole")
    show_gates(console, loaded.gates)
    if not all(gate.passed for gate in loaded.gates):
        raise typer.Exit(1)
    if recheck:
        from evict_profile.profile import recheck_table

        if recheck_table(console, loaded, fitted.frame, python) == "drifted":
            raise typer.Exit(1)


@app.command()
def audit(
    drafts: Annotated[str | None, typer.Option(help="topk or sampled.")] = None,
    accept: Annotated[
        str | None, typer.Option(help="target-only, match or rejection.")
    ] = None,
    rule: Annotated[
        str | None, typer.Option(help="fixed, threshold, stop, ratio or rate.")
    ] = None,
    score: Annotated[str | None, typer.Option(help="own, shifted or max.")] = None,
    json_out: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Is a way to truncate lossless? Classified, and enumerated in fractions.

    Without options, the whole table of docs/lossless.md, in under a minute.
    """
    from rich.progress import track

    from evict_profile.lossless.audit import AUDITS, audit_all, audit_of_words
    from evict_profile.summary import show_audit, show_audits

    words = {"drafts": drafts, "accept": accept, "rule": rule, "score": score}
    if any(words.values()):
        show_audit(console, audit_of_words(words), json_out)
    else:
        on_stderr = Console(stderr=True)
        audits = track(audit_all(), "enumerating", AUDITS, console=on_stderr)
        show_audits(console, list(audits), json_out)


@app.command()
def bench(
    only: Annotated[
        str | None, typer.Option(help="decision or shapes; else both.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Simulations of each mix.")] = 20,
    steps: Annotated[int, typer.Option(help="Steps of each simulation.")] = 2000,
    out: Annotated[Path, typer.Option(help="The JSON to write.")] = Path("bench.json"),
) -> None:
    """Time the decision, and compare truncation rules by simulation."""
    import json

    from evict_profile.bench.report import as_markdown, run_bench
    from evict_profile.files import require_writable, write_atomically

    require_writable(out)
    on_stderr = Console(stderr=True)
    found = run_bench(only, seeds, steps, lambda text: say(on_stderr, text))
    write_atomically(out, lambda path: path.write_text(json.dumps(found, indent=1)))
    say(console, as_markdown(found))
    say(console, f"bench: {out}")


@app.command()
def doctor() -> None:
    """Print what this machine is and what will work on it."""
    from evict_profile.doctor import examine
    from evict_profile.summary import show_findings

    show_findings(console, examine())


def _version(asked: bool) -> None:
    if asked:
        say(console, __version__)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print it."),
    ] = False,
) -> None:
    """Options of every command."""


def main() -> None:
    """Run the command; a user's mistake is one sentence and exit code 2."""
    try:
        app()
    except Interrupted as interruption:
        say(Console(stderr=True), str(interruption))
        sys.exit(INTERRUPTED)
    except EvictProfileError as error:
        _fail(str(error))
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EPERM}:
            raise
        _fail(f"{error.filename}: {error.strerror}; free space or choose another path")


def _fail(sentence: str) -> None:
    say(Console(stderr=True), f"error: {sentence}")
    sys.exit(USER_ERROR)
