"""From a fitted run, or from what a workload brings, to the next version of a table.

A workload changes the union at which a table's costs are read; the fit stays. What is
behind an interval is not in a table, so each cost keeps the relative interval that it
had: the same errors of the same fit, a few experts further.
"""

import math
from hashlib import sha256
from pathlib import Path

import numpy as np

from evict_profile.acceptance import Acceptance
from evict_profile.cells import failed_cells
from evict_profile.cost_model import HingeCost, padded_tokens
from evict_profile.drafting import Drafting
from evict_profile.errors import DataError, MeasurementError
from evict_profile.fit.fitted import Fitted
from evict_profile.fit.gates import judge
from evict_profile.fit.hinge import FIT_SPLIT
from evict_profile.fit.rounds import by_rounds
from evict_profile.records import replace
from evict_profile.stats import Floats
from evict_profile.table import (
    AXES,
    ActivationCurve,
    Axes,
    BatchActivation,
    CostTable,
    Fit,
    Gate,
    Key,
    Staircase,
    TermCost,
    tables_below,
)
from evict_profile.table.document import samples_of
from evict_profile.table.store import FIRST_VERSION, save_next

GUESS = "none: uniform routing, E (1 - (1 - k/E)^t), a guess that overestimates"


def make_table(
    fitted: Fitted, samples_sha256: str = "", gates: tuple[Gate, ...] | None = None
) -> CostTable:
    """The table of a run, version 1.0.0, whatever its gates say."""
    cells = fitted.level_cells
    seen = {axis: sorted({getattr(c, axis) for c in cells}) for axis in AXES}
    domain = {axis: (values[0], values[-1]) for axis, values in seen.items()}
    *_, max_tokens = seen.pop("tokens")
    activation = activation_of(fitted, max_tokens)
    points = sorted({(c.batch, c.context) for c in cells})
    return CostTable(
        key=Key.of(fitted.provenance.fingerprint),
        version=FIRST_VERSION,
        model=fitted.model,
        axes=Axes(
            **{axis: tuple(values) for axis, values in seen.items()},
            max_tokens=max_tokens,
            capture_sizes=fitted.capture_sizes,
        ),
        fit=_fit(fitted, domain),
        staircases=tuple(_staircase(fitted, activation, *point) for point in points),
        activation=activation,
        gates=judge(fitted) if gates is None else gates,
        provenance=replace(fitted.provenance, samples_sha256=samples_sha256),
        drafting=_drafting(fitted),
    )


def activation_of(fitted: Fitted, max_tokens: int) -> ActivationCurve:
    tokens = np.arange(max_tokens + 1)
    guess = np.array([fitted.model.uniform_union(float(t)) for t in tokens])
    text, seen = fitted.provenance.fingerprint.get("text"), fitted.natural_unions
    if not text or not seen:
        return ActivationCurve(GUESS, is_guess=True, union=_curve(guess))
    curves = {
        batch: guess
        * np.interp(tokens, u.index, u / u.index.map(fitted.model.uniform_union))
        for batch, u in seen.items()
    }
    return ActivationCurve(
        f"natural routing of {text}",
        is_guess=False,
        union=_curve(curves[min(curves)]),
        by_batch=tuple(BatchActivation(b, _curve(u)) for b, u in curves.items()),
    )


def export_table(fitted: Fitted, folder: Path) -> tuple[CostTable, Path]:
    """Write the table and its samples into a tree of tables, as its next version.

    An equal table that is there already is loaded instead.

    Raises:
        MeasurementError: a gate failed; its name and reason are in the message.
    """
    table = make_table(fitted)
    failed = [f"{g.name}: {g.message}" for g in table.gates if not g.passed]
    if failed:
        raise MeasurementError(f"not exported, since {' | '.join(failed)}")
    samples = fitted.frame.to_parquet(index=False)
    return save_with_samples(table, samples, table.home_in(folder))


def outcome(table: CostTable, path: Path) -> str:
    return f"{'unchanged' if table.path == path else 'table'}: {path}"


def save_with_samples(
    table: CostTable, samples: bytes, home: Path, after: str = ""
) -> tuple[CostTable, Path]:
    digest = sha256(samples).hexdigest()
    provenance = replace(table.provenance, samples_sha256=digest)
    table = replace(table, provenance=provenance)
    for there in filter(None, (entry.table for entry in tables_below(home))):
        if there == replace(table, version=there.version):
            return there, there.path
    return save_next(table, home, samples, after)


def with_workload(
    table: CostTable,
    acceptance: Acceptance | None,
    activation: ActivationCurve,
    drafting: Drafting | None,
) -> CostTable:
    """The table with a workload in it, all staircases read at its activation.

    Without a clock in the workload the table's own drafting stays.
    """
    reach = len(activation.union) - 1
    if reach < table.axes.max_tokens:
        raise DataError(
            f"the activation of '{activation.workload}' ends at {reach} tokens, and "
            f"the table covers {table.axes.max_tokens}; measure it further, or "
            "continue it as the table's own"
        )
    if drafting and table.drafting:
        timed = [(c, table.drafting.at(c.batch).mechanism_us) for c in drafting.batches]
        clocks = (replace(clock, mechanism_us=us) for clock, us in timed)
        drafting = replace(drafting, batches=tuple(clocks))
    table = replace(
        table,
        activation=activation,
        acceptance=acceptance,
        drafting=drafting or table.drafting,
    )
    return table.read_anew()


def export_workload(
    table: CostTable, path: Path, tables: Path | None = None
) -> tuple[CostTable, Path]:
    """Save a table as the next version after the one at `path`, beside it or in a tree.

    No file is overwritten; an equal table that is there already is loaded.
    """
    home = table.home_in(tables) if tables else path.parent
    return save_with_samples(table, _samples(table, path), home, table.version)


def export_copy(table: CostTable, tables: Path) -> tuple[CostTable, Path]:
    """Save a table that was read from a file into its place in a tree of tables."""
    samples = _samples(table, table.path)
    return save_with_samples(table, samples, table.home_in(tables))


def _samples(table: CostTable, path: Path) -> bytes:
    return samples_of(path, table.provenance.samples_sha256).read_bytes()


def _fit(fitted: Fitted, domain: dict[str, tuple[int, int]]) -> Fit:
    cost = fitted.cost
    return Fit(
        measured_layers=round(fitted.model.moe_layers / cost.layer_scale),
        layer_scale=cost.layer_scale,
        layers=_terms(cost.layers),
        non_moe=_terms(cost.non_moe),
        held_out={name: h.error for name, h in fitted.held_out.items() if h.error},
        natural=fitted.natural.error,
        validation=fitted.validation.error,
        domain=domain,
    )


def _terms(cost: HingeCost) -> tuple[TermCost, ...]:
    return tuple(
        TermCost(
            feature=term.feature,
            low=float(term.low),
            high=None if np.isinf(term.high) else float(term.high),
            us_per_unit=us,
        )
        for term, us in zip(cost.terms, cost.us_per_unit.tolist(), strict=True)
    )


def _curve(union: Floats) -> tuple[float, ...]:
    return tuple(np.maximum.accumulate(union).round(3).tolist())


def _widest(fitted: Fitted, batch: int) -> int:
    """The widest cell of a batch below every width that failed.

    A failure counts where no wider cell of that context was measured.
    """
    cells = sorted(c for c in fitted.level_cells if c.batch == batch)
    reached = {c.context: c.width for c in cells}
    failed = (
        c.width
        for c in failed_cells(fitted.frame)
        if (c.batch, c.split) == (batch, FIT_SPLIT)
        and c.width > reached.get(c.context, math.inf)
    )
    end = min(failed, default=math.inf)
    return max(c.width for c in cells if c.width < end)


def _staircase(
    fitted: Fitted, activation: ActivationCurve, batch: int, context: int
) -> Staircase:
    tokens_asked = np.arange(_widest(fitted, batch) * batch + 1)
    tokens = padded_tokens(tokens_asked, batch, fitted.capture_sizes)
    union = activation.at(tokens, batch)

    covered = fitted.costs_at(tokens, union, context, batch)
    cost_us, low_us, high_us = map(_rounded, covered)
    return Staircase(batch, context, cost_us, low_us, high_us)


def _drafting(fitted: Fitted) -> Drafting | None:
    if not fitted.clocks:
        return None
    sweep, cost = fitted.provenance, fitted.cost
    here, facts = sweep.reference_us, sweep.fingerprint
    weights = facts.get("drafter_weights", "own")
    speeds = (
        here / clock.reference_us if here and clock.reference_us else 1.0
        for clock in fitted.clocks
    )
    pairs = zip(fitted.clocks, speeds, strict=True)
    return Drafting(
        workload=f"no text: timed by the sweep, drafter weights: {weights}",
        engine=f"{facts['engine']} {facts['engine_version']}",
        batches=tuple(by_rounds(c.at_speed(s), cost, sweep.noise) for c, s in pairs),
    )


def _rounded(values: Floats) -> tuple[float, ...]:
    return tuple(round(float(value), 1) for value in values)
