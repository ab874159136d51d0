from pathlib import Path
from typing import Literal

import typer
from typer import Argument, Context, Option

from evict_profile.cli import complete, options
from evict_profile.cli.options import console, reject_unused, stderr
from evict_profile.errors import Interrupted, MeasurementError
from evict_profile.io import check_folder, say

UNUSED_OPTIONS = {"roofline": {"layers", "device"}}
"""Options of a sweep that have no effect with its runner."""


def sweep(
    ctx: Context,
    model: str = Argument(
        autocompletion=complete.shipped("models"),
        metavar="MODEL",
        help="Model: a shipped name, a YAML, a HF config.json or its folder.",
    ),
    plan: str = Option(
        "demo",
        help="Plan of the sweep: a shipped name, or a YAML.",
        autocompletion=complete.shipped("sweeps"),
    ),
    out: Path | None = Option(None, help="Run folder.", show_default="runs/MODEL/PLAN"),
    layers: int | None = Option(
        None, min=1, help="MoE layers to run.", show_default="the plan's"
    ),
    device: Literal["auto", "cpu", "cuda"] | None = Option(
        None, help="Device that runs the layers.", show_default="the plan's"
    ),
    dtype: Literal["auto", "bfloat16", "float32", "fp8_block"] | None = Option(
        None, help="Type of weights and activations.", show_default="the plan's"
    ),
    max_minutes: float = Option(
        float("inf"), help="Minutes of measuring.", show_default="no limit"
    ),
    python: options.Python = None,
    tables: options.Tables = Path("cost_tables"),
) -> None:
    """Measure a model, fit, export its table and write its report.

    The same command continues a sweep that was stopped.
    """
    check_folder(tables)
    from evict_profile.config import load_model, load_sweep
    from evict_profile.records import replace

    # What is mistyped is reported before the libraries of a sweep load.
    shape, spec = load_model(model), load_sweep(plan)
    unused = UNUSED_OPTIONS.get(spec.runner, ())
    reject_unused(ctx, unused, f"with the runner {spec.runner}")
    given = {"layers": layers, "device": device, "dtype": dtype}
    spec = replace(spec, **{name: value for name, value in given.items() if value})

    from evict_profile.report.model import model_line
    from evict_profile.sweep.engine import run_sweep
    from evict_profile.sweep.store import Store

    store = Store(out or Path("runs") / shape.name / spec.name)
    say(console, model_line(shape, model))
    finished = run_sweep(spec, shape, store, max_minutes, console, python)
    end = "finished" if finished else "stopped; the same command continues it"

    from evict_profile.fit.export import export_table, make_table
    from evict_profile.fit.fitted import fit_run
    from evict_profile.report.cost_page import write_report
    from evict_profile.report.fits import show_export, show_fit

    fitted = fit_run(store)
    show_fit(console, fitted)
    page = store.folder / "report.html"
    try:
        table, path = export_table(fitted, tables)
    except MeasurementError as refusal:
        write_report(fitted, make_table(fitted), page)
        more = "" if finished else "; the same command continues, but undoes no drift"
        why = f"no table: FAILED says why and what helps; report: {page}{more}"
        raise MeasurementError(why) from refusal
    write_report(fitted, table, page)
    say(console, f"sweep {end}: {store.folder}")
    show_export(console, table, path, page)


def fit(
    run: Path = Argument(metavar="RUN", help="Run folder."),
    tables: Path | None = Option(
        None, help="Folder to export its table into.", show_default="no table"
    ),
    as_json: options.AsJson = False,
) -> None:
    """Fit a run, and print its held-out errors and gates.

    With --tables its cost table is written, if it passes every gate.
    """
    if tables:
        check_folder(tables)
    from evict_profile.fit.export import export_table, outcome
    from evict_profile.fit.fitted import fit_run
    from evict_profile.report.fits import show_fit
    from evict_profile.sweep.store import Store

    fitted = fit_run(Store(run))
    show_fit(console, fitted, as_json)
    if tables:
        written = outcome(*export_table(fitted, tables))
        say(stderr if as_json else console, written)


def fleet(
    path: Path = Argument(metavar="FLEET", help="Fleet file (.yaml)."),
    address: str | None = Option(
        None, help="Address of a Ray cluster, or auto.", show_default="this machine"
    ),
    plan_only: bool = Option(
        False, "--plan-only", help="Write and print the plan, and measure nothing."
    ),
    out: Path | None = Option(
        None, help="Folder of the fleet.", show_default="runs/fleet/NAME"
    ),
    tables: options.Tables = Path("cost_tables"),
) -> None:
    """Run many sweeps on machines that share a folder.

    The same command continues a fleet that was stopped.
    """
    from evict_profile.fleet.spec import jobs_of, load_fleet

    spec = load_fleet(path)  # what is mistyped, before the other libraries load
    jobs = jobs_of(spec)

    from evict_profile.fleet.page import show_fleet
    from evict_profile.fleet.run import FleetFolder, run_fleet
    from evict_profile.report.explore import write_explore
    from evict_profile.table import tables_in

    folder = FleetFolder(out or Path("runs") / "fleet" / spec.name)
    check_folder(tables)
    folder.write_plan(jobs)
    show_fleet(console, folder, jobs)
    if plan_only:
        return
    try:
        with folder.locked():
            run_fleet(folder, spec, jobs, address, tables, console)
    except KeyboardInterrupt as interruption:
        raise Interrupted(
            f"interrupted; {folder.folder} is kept, the same command continues it"
        ) from interruption
    show_fleet(console, folder, jobs)
    published = [*map(folder.table, jobs)]
    if any(published):
        write_explore(console, tables_in([tables]), folder.folder / "tables.html")
    if not all(published):
        raise typer.Exit(1)
