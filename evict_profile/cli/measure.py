"""Commands that measure: profile, merge, fleet, doctor; and audit."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer
from typer import Argument, Context, Option

from evict_profile.cli import options
from evict_profile.cli.options import console, reject_unused
from evict_profile.errors import ConfigError, Interrupted
from evict_profile.io import check_folder, say, write_text
from evict_profile.lossless.rules import ACCEPTANCES, DRAFTS, RULES, SCORES

if TYPE_CHECKING:
    from evict_profile.sweep.store import Store

UNUSED_OPTIONS = {
    "roofline": {"layers", "device"},
    "llama_cpp": {"layers", "device"},
}
"""Options of a sweep that have no effect with its runner."""


def profile(
    ctx: Context,
    model: str = Option(
        "qwen3-30b-a3b", help="Model: a shipped name, a YAML, a HF config.json or GGUF."
    ),
    sweep_name: str = Option(
        "demo", "--sweep", help="Sweep: a shipped name, or a YAML."
    ),
    out: Path | None = Option(
        None, help="Run folder.", show_default="runs/MODEL/SWEEP"
    ),
    layers: int | None = Option(
        None, min=1, help="MoE layers to run.", show_default="the sweep's"
    ),
    device: Literal["auto", "cpu", "cuda"] | None = Option(
        None, help="Device that runs the layers.", show_default="the sweep's"
    ),
    dtype: Literal["auto", "bfloat16", "float32"] | None = Option(
        None, help="Type of weights and activations.", show_default="the sweep's"
    ),
    max_minutes: float = Option(
        float("inf"), help="Minutes of measuring.", show_default="no limit"
    ),
    python: options.Python = None,
    lib: Path | None = Option(
        None, exists=True, help="Your libllama.so, for the runner llama_cpp."
    ),
    shard: str | None = Option(
        None, help="Measure only shard i of n, as i/n, and write no table."
    ),
    tables: options.Tables = Path("cost_tables"),
) -> None:
    """Sweep, fit, export a cost table and write its report. Run it again to resume."""
    if shard:
        reject_unused(ctx, {"tables"}, "with --shard, which writes no table")
    else:
        check_folder(tables)
    from evict_profile.config import load_model, load_sweep
    from evict_profile.config.sweep import LLAMA_CPP
    from evict_profile.records import replace

    # What is mistyped is reported before the libraries of a sweep load.
    shape, spec = load_model(model), load_sweep(sweep_name)
    unused = UNUSED_OPTIONS.get(spec.runner, ())
    reject_unused(ctx, unused, f"with the runner {spec.runner}")
    given = {"layers": layers, "device": device, "dtype": dtype}
    spec = replace(spec, **{name: value for name, value in given.items() if value})
    if lib:
        if spec.runner != LLAMA_CPP:
            raise ConfigError(
                f"--lib is for the runner {LLAMA_CPP}, and the sweep '{spec.name}' "
                f"runs {spec.runner}; leave it out, or give --sweep llama"
            )
        spec = replace(spec, llama=replace(spec.llama, library=str(lib.absolute())))

    from evict_profile.sweep.engine import Limits, run_sweep
    from evict_profile.sweep.store import Store

    store = Store(out or Path("runs") / shape.name / spec.name)
    limits = Limits(max_minutes, shard or "1/1")
    finished = run_sweep(spec, shape, store, limits, console, python)
    end = "finished" if finished else "stopped; the same command continues it"
    say(console, f"sweep {end}: {store.folder}")
    if not shard:
        _export(store, tables)


def _export(store: "Store", tables: Path) -> None:
    """Fit a run, export its cost table and write its report."""
    from evict_profile.fit.export import export_table
    from evict_profile.fit.fitted import fit_run
    from evict_profile.report.cost_page import write_report
    from evict_profile.report.fits import show_export, show_fit

    fitted = fit_run(store)
    show_fit(console, fitted)
    table, path = export_table(fitted, tables)
    page = store.folder / "report.html"
    write_report(fitted, table, page)
    show_export(console, table, path)
    say(console, f"report: {page}")


def merge(
    shards: list[Path] = Argument(help="Run folders of all shards."),
    out: Path = Option(help="Run folder to write the merged run to."),
) -> None:
    """Merge the shards of one sweep into one run."""
    from evict_profile.sweep.merge import merge
    from evict_profile.sweep.store import Store

    merge([Store(folder) for folder in shards], Store(out))
    say(console, f"merged {len(shards)} shards into {out}")


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
    """Run many sweeps on machines that share a folder. Run it again to resume."""
    from evict_profile.fleet.spec import jobs_of, load_fleet

    spec = load_fleet(path)  # what is mistyped, before the other libraries load
    jobs = jobs_of(spec)

    from evict_profile.fleet.page import fleet_page, show_fleet
    from evict_profile.fleet.run import FleetFolder, run_fleet

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
    page = folder.folder / "tables.html"
    write_text(fleet_page(folder, spec.name, jobs), page)
    show_fleet(console, folder, jobs)
    say(console, f"page: {page}")
    if not all(map(folder.table, jobs)):
        raise typer.Exit(1)


def doctor() -> None:
    """Print the hardware and libraries of this machine, and which models fit."""
    from evict_profile.doctor import examine

    for finding in examine():
        say(console, str(finding))


def audit(
    drafts: str | None = Option(None, help=", ".join(DRAFTS)),
    accept: str | None = Option(None, help=", ".join(ACCEPTANCES)),
    rule: str | None = Option(None, help=", ".join(RULES)),
    score: str | None = Option(None, help=", ".join(SCORES)),
    json_out: bool = Option(False, "--json", help="Print JSON."),
) -> None:
    """Check whether a truncation rule keeps the target's distribution.

    Without options, every combination is checked, as in docs/explanation/lossless.md.
    """
    from evict_profile.lossless.audit import COMBINATIONS, audit_of_words
    from evict_profile.lossless.audit import audit as audit_of
    from evict_profile.report.audits import show_audit, show_audits

    words = {"drafts": drafts, "accept": accept, "rule": rule, "score": score}
    if any(words.values()):
        show_audit(console, audit_of_words(words), json_out)
    else:
        show_audits(console, list(map(audit_of, COMBINATIONS)), json_out)
