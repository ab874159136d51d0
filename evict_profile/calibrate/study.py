"""Acceptance, activation and drafting times of a trace; a check of a table's costs."""

from dataclasses import dataclass

import numpy as np

from evict_profile.acceptance import Acceptance, CalibrationError, ConditionalAcceptance
from evict_profile.calibrate.acceptance import (
    CURVES,
    Conditional,
    Curves,
    fit_conditional,
    per_rank_acceptance,
)
from evict_profile.calibrate.activation import (
    Activations,
    as_activation_curve,
    measure_activation,
)
from evict_profile.calibrate.drafting import by_level
from evict_profile.calibrate.held_out import HeldOutChances, HeldOutErrors, hold_out
from evict_profile.cost_model import ForwardCost
from evict_profile.drafting import Drafting
from evict_profile.fit.export import with_workload
from evict_profile.fit.gates import is_good
from evict_profile.stats import ErrorSummary, Floats, summarise_errors
from evict_profile.table import CostTable
from evict_profile.traces import Trace
from evict_profile.traces.trace import check_same_model, check_trees
from evict_profile.unions import union_by_tokens

GROUPS = 20


@dataclass(frozen=True, eq=False)
class Calibrated:
    held_out: HeldOutChances
    chosen: str
    curves: Curves
    conditional: Conditional
    per_rank: Floats
    errors: dict[str, HeldOutErrors]


@dataclass(frozen=True)
class CostCheck:
    """A table's costs against verification clocks under natural routing.

    `error` is over medians of groups of similar steps; `ratio` of measured to
    predicted.
    """

    error: ErrorSummary
    ratio: float

    @property
    def holds(self) -> bool:
        return is_good(self.error)

    def __str__(self) -> str:
        verdict = (
            "the table covers natural routing in this engine"
            if self.holds
            else "the table does not cover this engine's verification as it ran: "
            "sweep the same engine on the same machine, quiet, before a verdict"
        )
        return (
            f"verification took {self.ratio:.2f} of its cost in the median (error of "
            f"the cost: median {self.error.median:.1%}, p90 {self.error.p90:.1%} over "
            f"{self.error.cells} groups of steps): {verdict}"
        )


@dataclass(frozen=True, eq=False)
class CalibrationStudy:
    """None where the trace lacks routes or clocks."""

    trace: Trace
    calibrated: Calibrated
    activations: Activations | None
    drafting: Drafting | None
    costs: CostCheck | None

    @property
    def name(self) -> str:
        return workload_name(self.trace)


def calibration_study(trace: Trace, table: CostTable) -> CalibrationStudy:
    check_same_model(trace.about, table.model)
    check_trees(trace)
    speed = trace.about.speed_on(table.key.engine, table.provenance.reference_us)
    engine = f"{trace.about.engine or 'unnamed'} {trace.about.engine_version}".strip()
    name = workload_name(trace)
    drafting = Drafting.at_speed(trace.clocks, name, engine, speed)
    return CalibrationStudy(
        trace=trace,
        calibrated=calibrate(trace),
        activations=measure_activation(trace),
        drafting=drafting and by_level(drafting, table.drafting),
        costs=check_costs(trace, table.cost, speed),
    )


def calibrated_table(found: CalibrationStudy, table: CostTable) -> CostTable:
    acceptance = as_acceptance(found.calibrated, found.name, len(found.trace))
    activation = table.activation
    if found.activations:
        tokens = table.axes.max_tokens
        kept = {batch: curve.union for batch, curve in found.activations.items()}
        activation = as_activation_curve(kept, found.name, table.model, tokens)
    return with_workload(table, acceptance, activation, found.drafting)


def calibrate(trace: Trace) -> Calibrated:
    """Choose a calibrator on held-out prompts by Brier score, and fit it to all."""
    nodes, held_out = trace.nodes, hold_out(trace)
    chosen = held_out.one_standard_error_rule(list(CURVES))
    topk = trace.about.topk or 1 + int(nodes.rank.max())
    return Calibrated(
        held_out,
        chosen,
        CURVES[chosen](nodes),
        fit_conditional(nodes),
        per_rank_acceptance(nodes, topk),
        held_out.errors(chosen),
    )


def as_acceptance(found: Calibrated, workload: str, steps: int) -> Acceptance:
    scores, acceptances = found.curves.knots
    raw, calibrated = (
        CalibrationError(ece=round(error.ece, 6), brier=round(error.brier.value, 6))
        for error in (found.errors["raw"], found.errors[found.chosen])
    )
    return Acceptance(
        workload=workload,
        steps=steps,
        scores=scores,
        acceptances=acceptances,
        # Rounded down: shares of siblings must not sum to more than 1.
        per_rank=tuple((np.floor(found.per_rank * 1e6) / 1e6).tolist()),
        held_out={"raw": raw, "calibrated": calibrated},
        conditional=ConditionalAcceptance(*found.conditional.level.knots),
    )


def check_costs(trace: Trace, cost: ForwardCost, speed: float) -> CostCheck | None:
    """Predict each timed step, whose clock is scaled by `speed`; None without data."""
    if trace.verify_us is None or trace.routes is None:
        return None
    trees = np.split(trace.routes, trace.root[1:])
    union = [union_by_tokens(tree, trace.about.experts)[-1] for tree in trees]
    covered = cost.latency_us(1.0 + trace.size, np.array(union), trace.context, 1)
    measured = speed * trace.verify_us
    groups = np.array_split(np.argsort(covered), min(GROUPS, len(covered)))
    medians = [
        np.array([np.median(us[group]) for group in groups])
        for us in (covered, measured)
    ]
    ratio = float(np.median(measured / covered))
    return CostCheck(summarise_errors(*medians), ratio)


def workload_name(trace: Trace) -> str:
    temperatures = "+".join(f"{value:g}" for value in trace.temperatures)
    return (
        f"{'+'.join(trace.workloads)}, {trace.about.model}, T={temperatures}: "
        f"{len(trace):,} trees of {len(trace.prompts)} prompts"
    )
