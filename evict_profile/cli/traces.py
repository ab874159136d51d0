"""Commands about traces and expert budgets: record, learn, replay, recommend."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer import Argument, Context, Option

from evict_profile.cli import options
from evict_profile.cli.options import console, reject_unused
from evict_profile.io import check_outputs, say, write_text


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
        reject_unused(ctx, {"seeds", "temperature", "batch"}, "with --budget")
        plan = BudgetPlan(budgets=tuple(dict.fromkeys(budget)), **shared)
    else:
        if not any(temperature):
            reject_unused(ctx, {"seeds"}, "at temperature 0")
        plan = TracePlan(
            seeds=seeds,
            temperatures=tuple(dict.fromkeys(temperature)),
            batches=tuple(dict.fromkeys(batch)),
            **shared,
        )
    record(plan, world, out, console, python)


def budget(
    recording: Path = Argument(exists=True, help="Of 'trace --budget'."),
    table: Path = Option(
        callback=options.valid_table, help="Cost table of the model recorded."
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
