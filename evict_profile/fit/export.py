"""From a fitted run to a cost table, through the gates."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from evict_profile.cost_model import HingeCost, padded_tokens
from evict_profile.errors import ConfigError, GateError
from evict_profile.fit.fitted import Fitted, file_sha256, fit_run
from evict_profile.fit.gates import judge
from evict_profile.fit.hinge import CostModel, interval
from evict_profile.io import make_folder, write_atomically
from evict_profile.stats import Floats
from evict_profile.sweep.store import Store
from evict_profile.table import (
    ActivationCurve,
    Axes,
    CostTable,
    DraftClock,
    Drafting,
    Fit,
    Key,
    Staircase,
    TermCost,
    version_of,
)

FIRST_VERSION = "1.0.0"
GUESS = "none: uniform routing, E (1 - (1 - k/E)^t), a guess that overestimates"


def make_table(fitted: Fitted, samples_sha256: str = "") -> CostTable:
    """The table of a run, version 1.0.0, whatever its gates say."""
    growth = _uniform_growth(fitted)
    return CostTable(
        key=Key.of(fitted.provenance.fingerprint),
        version=FIRST_VERSION,
        model=fitted.model,
        axes=_axes(fitted),
        fit=_fit(fitted),
        staircases=_staircases(fitted, growth),
        activation=growth,
        gates=judge(fitted),
        provenance=replace(fitted.provenance, samples_sha256=samples_sha256),
        drafting=_drafting(fitted),
    )


def export_run(run: Path, folder: Path) -> tuple[CostTable, Path]:
    """Fit a run and export its table; see `export_table`.

    Raises:
        ConfigError: a file, not the folder of a run.
    """
    if run.is_file():
        raise ConfigError(
            f"{run}: is a file, and a run is a folder; give a run's folder, or for a "
            f"cost table say which --format it is to be written in"
        )
    return export_table(fit_run(Store(run)), folder)


def export_table(fitted: Fitted, folder: Path) -> tuple[CostTable, Path]:
    """Write the table and its samples into a tree of tables, as its next version.

    The first table of a key is 1.0.0; measuring again raises the patch, a change of
    axes the minor version.

    Raises:
        GateError: a gate failed; all that failed are named.
        TableError: a file among the tables of this key is no readable table.
        StoreError: the folder cannot be written.
    """
    draft = make_table(fitted)
    failed = [f"{g.name}: {g.message}" for g in draft.gates if not g.passed]
    if failed:
        raise GateError(f"not exported, since {' | '.join(failed)}")
    home = (folder / draft.relative_path).parent
    make_folder(home)
    version = next_version(home, draft.axes)
    path, samples = home / f"{version}.json", home / f"{version}.parquet"
    frame = fitted.frame
    write_atomically(samples, lambda p: frame.to_parquet(p, index=False))
    provenance = replace(draft.provenance, samples_sha256=file_sha256(samples))
    table = replace(draft, version=version, provenance=provenance)
    write_atomically(path, lambda p: table.save(p))
    return table, path


def next_version(home: Path, axes: Axes) -> str:
    """The version after the newest in a folder of tables."""
    present = sorted(home.glob("*.json"), key=lambda path: version_of(path.stem))
    if not present:
        return FIRST_VERSION
    major, minor, patch = version_of(present[-1].stem)
    same_axes = CostTable.load(present[-1]).axes == axes
    return f"{major}.{minor}.{patch + 1}" if same_axes else f"{major}.{minor + 1}.0"


def rounded(values: Floats) -> tuple[float, ...]:
    """Microseconds as a table keeps them, to a tenth."""
    return tuple(round(float(value), 1) for value in values)


def _axes(fitted: Fitted) -> Axes:
    cells = fitted.layer_points.cells
    values = {
        axis: tuple(sorted({getattr(c, axis) for c in cells}))
        for axis in ("width", "union", "context", "batch")
    }
    most = max(c.tokens for c in cells)
    return Axes(**values, max_tokens=most, ladder=fitted.ladder)


def _fit(fitted: Fitted) -> Fit:
    cost, others = fitted.cost, fitted.replicates
    cells = fitted.layer_points.cells
    axes = ("width", "union", "context", "batch", "tokens")
    values = {axis: [getattr(c, axis) for c in cells] for axis in axes}
    return Fit(
        measured_layers=cost.measured_layers,
        layer_scale=cost.layer_scale,
        layers=_terms(cost.layers, [other.layers for other in others]),
        non_moe=_terms(cost.ends, [other.ends for other in others]),
        held_out={name: h.error for name, h in fitted.held_out.items()},
        natural=fitted.natural_error(),
        domain={axis: (min(seen), max(seen)) for axis, seen in values.items()},
    )


def _terms(cost: HingeCost, others: list[HingeCost]) -> tuple[TermCost, ...]:
    low, high = interval([other.us_per_unit for other in others])
    return tuple(
        TermCost(
            feature=term.feature,
            low=float(term.low),
            high=None if np.isinf(term.high) else float(term.high),
            us_per_unit=float(cost.us_per_unit[i]),
            us_per_unit_interval=(float(low[i]), float(high[i])),
        )
        for i, term in enumerate(cost.terms)
    )


def _uniform_growth(fitted: Fitted) -> ActivationCurve:
    model = fitted.model
    most = max(c.tokens for c in fitted.layer_points.cells)
    union = tuple(round(model.uniform_union(t), 3) for t in range(most + 1))
    return ActivationCurve(workload=GUESS, is_guess=True, union=union)


def _staircases(fitted: Fitted, growth: ActivationCurve) -> tuple[Staircase, ...]:
    places = sorted({(c.batch, c.context) for c in fitted.layer_points.cells})
    return tuple(_staircase(fitted, growth, *place) for place in places)


def _staircase(
    fitted: Fitted, growth: ActivationCurve, batch: int, context: int
) -> Staircase:
    cells = fitted.layer_points.cells
    widest = max(c.width for c in cells if (c.batch, c.context) == (batch, context))
    asked = np.arange(widest * batch + 1)
    tokens = padded_tokens(asked, batch, fitted.ladder)
    union = np.interp(tokens, np.arange(len(growth.union)), growth.union)

    def price(cost: CostModel) -> Floats:
        return cost.forward.price(tokens, union, context, batch)

    low, high = interval([price(other) for other in fitted.replicates])
    mean = price(fitted.cost)
    return Staircase(batch, context, rounded(mean), rounded(low), rounded(high))


def _drafting(fitted: Fitted) -> Drafting | None:
    """The runner's clocks, at the speed that the machine had during the sweep."""
    if not fitted.clocks:
        return None
    reference_us = fitted.provenance.reference_us
    facts = fitted.provenance.fingerprint
    weights = facts.get("drafter_weights", "own")
    return Drafting(
        workload=f"none: timed by the sweep itself, drafter weights: {weights}",
        engine=f"{facts['engine']} {facts['engine_version']}",
        batches=tuple(_clock(clock, reference_us) for clock in fitted.clocks),
    )


def _clock(clock: DraftClock, reference_us: float | None) -> DraftClock:
    here, there = reference_us, clock.reference_us
    return clock.at_speed(here / there if here and there else 1.0)
