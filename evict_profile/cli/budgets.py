"""Commands about expert budgets."""

from pathlib import Path
from typing import Annotated

import typer

from evict_profile.cli.options import (
    Depth,
    Fan,
    Json,
    Nodes,
    Prompts,
    Python,
    Tokens,
    Workloads,
    World,
    console,
)
from evict_profile.io import say


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
    from evict_profile.budgets.study import Bounds, BudgetOptions, study
    from evict_profile.io import check_outputs, write_text
    from evict_profile.report.budgets_page import page, show_study
    from evict_profile.table import files_of

    outputs = [path for path in (out, json_out) if path]
    check_outputs(outputs, [*recordings, *files_of(table)])
    bounds = Bounds(kl, agreement, loss, accept)
    result = study(BudgetOptions(recordings, table, workload or [], bounds))
    show_study(console, result)
    write_text(page(result), out)
    say(console, f"report: {out}")
    if json_out:
        write_text(result.as_json(), json_out)
        say(console, f"numbers: {json_out}")


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
    fan: Fan = 8,
    nodes: Nodes = 60,
    workload: Workloads = None,
    python: Python = None,
) -> None:
    """Record replies under expert budgets, and how far they are off."""
    from evict_profile.budgets.record import BudgetPlan, record_budgets

    plan = BudgetPlan(
        prompts=prompts,
        tokens=tokens,
        budgets=tuple(budget or ()),
        rules=tuple(rule or ()),
        workloads=tuple(workload or ()),
        depth=depth,
        fan=fan,
        nodes=nodes,
    )
    record_budgets(world, out, plan, console, python)
