"""Commands that measure on this machine, and fit what was measured.

Imports wait until a command runs, here and in its neighbours: `--help` and mistakes
are answered at once, without torch or pandas.
"""

from pathlib import Path
from typing import Annotated

import typer

from evict_profile.cli.shared import (
    Device,
    Dtype,
    Layers,
    Minutes,
    Model,
    Out,
    PlanKind,
    Python,
    Run,
    Shard,
    SweepName,
    Tables,
    console,
)
from evict_profile.io import say


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
    from evict_profile.io import check_folder
    from evict_profile.profile import Ask, run_folder, sweep_model, what_was_made
    from evict_profile.report.console import show_fit
    from evict_profile.report.cost_page import write_report

    ask = Ask(model, sweep_name, layers, device, dtype, plan, python, max_minutes)
    store = run_folder(ask, out)
    check_folder(tables)
    sweep_model(ask, store, console)
    fitted = fit_run(store)
    show_fit(console, fitted)
    table, path = export_table(fitted, tables)
    page = store.folder / "report.html"
    write_report(fitted, table, page)
    what_was_made(console, table, path, page)


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


def merge(
    shards: Annotated[list[Path], typer.Argument(help="Run folders of the shards.")],
    out: Annotated[Path, typer.Option(help="Folder of the merged run.")],
) -> None:
    """Put the shards of one sweep together."""
    from evict_profile.sweep.store import Store, merge

    merge([Store(folder) for folder in shards], Store(out))
    say(console, f"merged {len(shards)} shards into {out}")


def fit(run: Run) -> None:
    """Fit a run; print its held-out error, its rivals and its gates."""
    from evict_profile.fit.fitted import fit_run
    from evict_profile.report.console import show_fit
    from evict_profile.sweep.store import Store

    show_fit(console, fit_run(Store(run)))


def doctor() -> None:
    """Print what this machine is and what will work on it."""
    from evict_profile.doctor import examine
    from evict_profile.report.console import show_findings

    show_findings(console, examine())
