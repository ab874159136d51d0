"""Commands that measure on this machine, fit what was measured, and audit rules.

Imports wait until a command runs, here and in its neighbours: `--help` and mistakes
are answered at once, without torch or pandas.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from evict_profile.cli.options import (
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
from evict_profile.errors import ConfigError
from evict_profile.io import check_folder, check_outputs, finite, say, write_json
from evict_profile.records import replace

if TYPE_CHECKING:
    from evict_profile.config import ModelSpec, SweepSpec
    from evict_profile.sweep.engine import Limits
    from evict_profile.sweep.store import Store

DEVICES = ("auto", "cpu", "cuda")
PLANS = ("grid", "adaptive")


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
    from evict_profile.report.console import show_fit
    from evict_profile.report.cost_page import write_report
    from evict_profile.sweep.engine import Limits

    shape, spec = _specs(model, sweep_name, layers, device, dtype, plan)
    store = _run_folder(out, shape, spec)
    check_folder(tables)
    _measure(spec, shape, store, Limits(max_minutes), python)
    fitted = fit_run(store)
    show_fit(console, fitted)
    table, path = export_table(fitted, tables)
    page = store.folder / "report.html"
    write_report(fitted, table, page)
    errors = table.fit.held_out
    ours, blind = errors["hinge"].median, errors["tokens only"].median
    times = f" ({blind / ours:.0f}x)" if ours > 0.0 else ""
    say(console, f"table: {path}")
    say(console, f"held-out error: {errors['hinge']}")
    say(
        console,
        f"the union axis: median held-out error {blind:.1%} without it, {ours:.1%} "
        f"with it{times}",
    )
    say(console, f"report: {page}")


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
    from evict_profile.sweep.engine import Limits

    shape, spec = _specs(model, sweep_name, layers, device, dtype, plan)
    store = _run_folder(out, shape, spec)
    _measure(spec, shape, store, Limits(max_minutes, shard), python)


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

    Without options every combination, as docs/explanation/lossless.md shows them.
    """
    from rich.progress import track

    from evict_profile.lossless.audit import COMBINATIONS, audit_of_words
    from evict_profile.lossless.audit import audit as audit_of
    from evict_profile.report.console import show_audit, show_audits

    words = {"drafts": drafts, "accept": accept, "rule": rule, "score": score}
    if any(words.values()):
        show_audit(console, audit_of_words(words), json_out)
    else:
        on_stderr = Console(stderr=True)
        combinations = track(COMBINATIONS, "enumerating", console=on_stderr)
        show_audits(console, list(map(audit_of, combinations)), json_out)


def bench(
    only: Annotated[
        str | None, typer.Option(help="decision or policies; else both.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="Cost table.", show_default="a shipped one")
    ] = None,
    prompts: Annotated[int, typer.Option(help="Replies of each mix.", min=5)] = 8,
    tokens: Annotated[int, typer.Option(help="Of each reply.", min=1)] = 64,
    out: Annotated[Path, typer.Option(help="The JSON to write.")] = Path("bench.json"),
) -> None:
    """Time the decision, and compare policies on synthetic traces."""
    if only not in (None, "decision", "policies"):
        raise ConfigError(f"--only '{only}' is not one of decision, policies")
    from evict_profile import bench
    from evict_profile.replay.wrong_tables import name_of, other_table
    from evict_profile.report.replay_page import show_policies, show_timings
    from evict_profile.table import files_of

    check_outputs([out], files_of(table) if table else [])
    on_stderr = Console(stderr=True)
    priced_by, comparisons, timings = other_table(table), None, None

    def progress(text: str) -> None:
        say(on_stderr, text)

    if only != "decision":
        comparisons = bench.compare_policies(priced_by, prompts, tokens, progress)
        show_policies(console, comparisons)
    if only != "policies":
        timings = bench.time_decisions(priced_by, progress)
        show_timings(console, timings)
    write_json(finite(bench.as_json(priced_by, comparisons, timings)), out)
    say(console, f"priced by the table of {name_of(priced_by)}")
    say(console, f"bench: {out}")


def _specs(
    model: str,
    sweep_name: str,
    layers: int | None,
    device: str | None,
    dtype: str | None,
    plan: str | None,
) -> tuple[ModelSpec, SweepSpec]:
    """The model, and the sweep with the options given; None keeps what its file says.

    Raises:
        ConfigError: no such model or sweep, or an option that cannot be.
    """
    from evict_profile.config import load_model, load_sweep
    from evict_profile.config.model import BYTES_PER_VALUE

    shape, spec = load_model(model), load_sweep(sweep_name)
    _check_one_of("--plan", plan, PLANS)
    _check_one_of("--device", device, DEVICES)
    _check_one_of("--dtype", dtype, ("auto", *BYTES_PER_VALUE))
    if layers is not None and layers < 1:
        raise ConfigError(f"--layers {layers}: must be at least 1")
    options = {"layers": layers, "device": device, "dtype": dtype, "plan": plan}
    chosen: dict[str, Any] = {k: v for k, v in options.items() if v is not None}
    return shape, replace(spec, **chosen)


def _run_folder(out: Path | None, model: ModelSpec, spec: SweepSpec) -> Store:
    """The run's folder: as asked, or runs/MODEL/SWEEP."""
    from evict_profile.sweep.store import Store

    return Store(out or Path("runs") / model.name / spec.name)


def _measure(
    spec: SweepSpec,
    model: ModelSpec,
    store: Store,
    limits: Limits,
    python: str | None,
) -> None:
    """Run or continue a sweep, and say how it ended."""
    from evict_profile.fit.fitted import fit_uncertainty
    from evict_profile.sweep.engine import run_sweep

    finished = run_sweep(spec, model, store, fit_uncertainty, limits, console, python)
    end = "finished" if finished else "stopped; the same command continues it"
    say(console, f"sweep {end}: {store.folder}")


def _check_one_of(option: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        raise ConfigError(f"{option} {value}: must be one of {', '.join(allowed)}")
