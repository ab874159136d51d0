"""What one command asks for, from a model's name to a finished run."""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from evict_profile.config import ModelSpec, SweepSpec, load_model, load_sweep
from evict_profile.config.model import BYTES_PER_VALUE
from evict_profile.errors import ConfigError
from evict_profile.fit.fitted import fit_uncertainty
from evict_profile.io import say
from evict_profile.recheck import overall, recheck
from evict_profile.report.console import show_rechecks
from evict_profile.stats import Verdict
from evict_profile.sweep.engine import Limits, run_sweep
from evict_profile.sweep.store import Store
from evict_profile.table import CostTable


@dataclass(frozen=True)
class Ask:
    """The choices of one call; None keeps what the sweep's or the model's file says."""

    model: str
    sweep: str
    layers: int | None = None
    device: str | None = None
    dtype: str | None = None
    plan: str | None = None
    python: str | None = None
    max_minutes: float = float("inf")
    shard: str = "1/1"

    def model_spec(self) -> ModelSpec:
        """The model."""
        return load_model(self.model)

    def sweep_spec(self) -> SweepSpec:
        """The sweep, with the layers, device, dtype and plan asked for."""
        spec = load_sweep(self.sweep)
        _one_of("--plan", self.plan, ("grid", "adaptive"))
        _one_of("--device", self.device, ("auto", "cpu", "cuda"))
        _one_of("--dtype", self.dtype, ("auto", *BYTES_PER_VALUE))
        if self.layers is not None and self.layers < 1:
            raise ConfigError(f"--layers {self.layers}: must be at least 1")
        return replace(
            spec,
            **_given(
                layers=self.layers,
                device=self.device,
                dtype=self.dtype,
                plan=self.plan,
            ),
        )


def run_folder(ask: Ask, out: Path | None) -> Store:
    """The run's folder: as asked, or runs/MODEL/SWEEP."""
    folder = Path("runs") / ask.model_spec().name / ask.sweep_spec().name
    return Store(out or folder)


def sweep_model(ask: Ask, store: Store, console: Console) -> None:
    """Run or continue the sweep that was asked for, and say how it ended."""
    limits = Limits(ask.max_minutes, ask.shard)
    finished = run_sweep(
        ask.sweep_spec(),
        ask.model_spec(),
        store,
        fit_uncertainty,
        limits,
        console,
        ask.python,
    )
    end = "finished" if finished else "stopped; the same command continues it"
    say(console, f"sweep {end}: {store.folder}")


def what_was_made(console: Console, table: CostTable, path: Path, page: Path) -> None:
    """The four lines that end a profile."""
    errors = table.fit.held_out
    ours, blind = errors["ours"].median, errors["tokens only"].median
    times = f" ({blind / ours:.0f}x)" if ours > 0.0 else ""
    for line in (
        f"table: {path}",
        f"held-out error: {errors['ours']}",
        f"the union axis: median held-out error {blind:.1%} without it, {ours:.1%} "
        f"with it{times}",
        f"report: {page}",
    ):
        say(console, line)


def recheck_table(
    console: Console, table: CostTable, frame: pd.DataFrame, python: str | None
) -> Verdict:
    """Measure some of a table's cells again and print the verdicts."""
    with tempfile.TemporaryDirectory() as folder:
        checks = recheck(table, frame, Path(folder) / "runner.log", python)
    show_rechecks(console, checks, table.provenance.aa_floor)
    verdict = overall(checks)
    say(console, f"this machine against the table: {verdict}")
    return verdict


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _one_of(option: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        raise ConfigError(f"{option} {value}: must be one of {', '.join(allowed)}")
