"""Everything that a trace says of a workload, beside the table that it is for."""

from dataclasses import dataclass

import numpy as np

from evict_profile.calibrate.acceptance import (
    CURVES,
    Conditional,
    Curves,
    Nodes,
    fit_conditional,
    nodes_of,
    per_rank_acceptance,
    prompt_names,
)
from evict_profile.calibrate.activation import (
    Activations,
    as_activation_curve,
    measure_activation,
)
from evict_profile.calibrate.held_out import HeldOutChances, HeldOutErrors, hold_out
from evict_profile.cost_model import ForwardCost
from evict_profile.fit.export import with_workload
from evict_profile.fit.gates import is_good
from evict_profile.stats import ErrorSummary, Floats, summarise_errors
from evict_profile.table import (
    Acceptance,
    CalibrationError,
    ConditionalAcceptance,
    CostTable,
    Drafting,
)
from evict_profile.traces import Step, Trace
from evict_profile.traces.trace import check_same_model, check_trees

GROUPS = 20


@dataclass(frozen=True, eq=False)
class Calibrated:
    """The candidates compared, and what a table gets.

    Attributes:
        chosen: the simplest curve of nearly the best held-out Brier score.
        curves: that, fitted to all nodes.
        conditional: acceptance level by level, fitted to all nodes.
        errors: held-out errors of each candidate.
    """

    held_out: HeldOutChances
    chosen: str
    curves: Curves
    conditional: Conditional
    errors: dict[str, HeldOutErrors]


@dataclass(frozen=True)
class PriceCheck:
    """Prices of recorded verifications against their times.

    A table is made from forced routing; a recording verifies trees that a router
    routed. Priced at the tokens and the union that were observed, the two should agree.

    Attributes:
        error: relative errors of the prices, over groups of steps of like price. A
            single step's time scatters with the machine; a group's median does not.
        ratio: median of measured over priced, over all steps.
        steps: how many there are.
    """

    error: ErrorSummary
    ratio: float
    steps: int

    @property
    def holds(self) -> bool:
        """Whether the prices are as near as a fit must be on unseen cells."""
        return is_good(self.error)

    def __str__(self) -> str:
        verdict = (
            "the table prices natural routing in this engine"
            if self.holds
            else "the table does not price this engine's verification as it ran: "
            "sweep the same engine on the same machine, quiet, before a verdict"
        )
        return (
            f"verification took {self.ratio:.2f} of its price in the median (error of "
            f"the price: median {self.error.median:.1%}, p90 {self.error.p90:.1%} over "
            f"{self.error.cells} groups of {self.steps:,} steps): {verdict}"
        )


@dataclass(frozen=True, eq=False)
class CalibrationStudy:
    """What was found; None where the trace does not hold what that needs.

    Attributes:
        name: the workload, as the table will name it.
        by_workload: held-out errors on the prompts of each workload.
        per_rank: acceptance of an accepted node's children, by rank.
        prices: the table's prices against the trace's clocks.
    """

    trace: Trace
    name: str
    calibrated: Calibrated
    by_workload: dict[str, dict[str, HeldOutErrors]]
    per_rank: Floats
    activations: Activations | None
    drafting: Drafting | None
    prices: PriceCheck | None


def study(trace: Trace, table: CostTable) -> CalibrationStudy:
    """Learn acceptance, activation and drafting times, and check the table's prices."""
    check_same_model(trace.about, table.model)
    check_trees(trace)
    name, calibrated = workload_name(trace), calibrate(nodes_of(trace.replies))
    speed = table.speed_over(trace.about.engine, trace.about.reference_us)
    return CalibrationStudy(
        trace=trace,
        name=name,
        calibrated=calibrated,
        by_workload=_by_workload(trace, calibrated),
        per_rank=per_rank_acceptance(trace.steps, _topk(trace)),
        activations=measure_activation(trace),
        drafting=drafting_of(trace, name, speed),
        prices=check_prices(trace, table.cost, speed),
    )


def calibrated_table(found: CalibrationStudy, table: CostTable) -> CostTable:
    """The table with what was found; what the trace cannot tell stays as it was."""
    steps, activation = len(found.trace.steps), table.activation
    acceptance = as_acceptance(found.calibrated, found.name, steps, found.per_rank)
    if found.activations:
        tokens = table.axes.max_tokens
        activation = as_activation_curve(
            found.activations, found.name, table.model, tokens
        )
    return with_workload(table, acceptance, activation, found.drafting)


def calibrate(nodes: Nodes) -> Calibrated:
    """Compare the candidates on prompts held out, and fit the best curve.

    The Brier score decides, since a node's benefit is its chance, and an error in a
    likely node costs more than the same ratio in an unlikely one.
    """
    held_out = hold_out(nodes)
    chosen = held_out.simplest(list(CURVES))
    errors = held_out.errors(chosen)
    conditional = fit_conditional(nodes)
    return Calibrated(held_out, chosen, CURVES[chosen](nodes), conditional, errors)


def as_acceptance(
    found: Calibrated, workload: str, steps: int, per_rank: Floats
) -> Acceptance:
    """What was found, as a table holds it."""
    scores, acceptances = found.curves.knots
    return Acceptance(
        workload=workload,
        steps=steps,
        scores=scores,
        acceptances=acceptances,
        # Rounded down: shares of siblings must not sum to more than 1.
        per_rank=tuple((np.floor(per_rank * 1e6) / 1e6).tolist()),
        held_out={
            "raw": _error(found.errors["raw"]),
            "calibrated": _error(found.errors[found.chosen]),
        },
        conditional=ConditionalAcceptance(*found.conditional.level.knots),
    )


def drafting_of(trace: Trace, workload: str, speed: float) -> Drafting | None:
    """Times of drafting by batch; None where the recorder had no clock.

    `speed` is a factor on all of them, see `CostTable.speed_over`.
    """
    engine = f"{trace.about.engine or 'unnamed'} {trace.about.engine_version}".strip()
    return Drafting.at_speed(trace.clocks, workload, engine, speed)


def check_prices(trace: Trace, cost: ForwardCost, speed: float) -> PriceCheck | None:
    """Price each timed step at what it verified; None without clocks or routes.

    `speed` brings the trace's clocks to the table's.
    """
    timed = [step for step in trace.steps if step.times and step.routes is not None]
    if not timed:
        return None
    clocks = [step.times.verify_us for step in timed if step.times]
    measured = speed * np.array(clocks)
    priced = np.array([_price_us(step, cost) for step in timed])
    groups = np.array_split(np.argsort(priced), min(GROUPS, len(priced)))
    medians = [
        np.array([np.median(us[group]) for group in groups])
        for us in (priced, measured)
    ]
    return PriceCheck(
        summarise_errors(*medians), float(np.median(measured / priced)), len(timed)
    )


def workload_name(trace: Trace) -> str:
    """ "code+prose, stdlib, T=0: 3,072 trees of 48 prompts"."""
    temperatures = "+".join(f"{each:g}" for each in trace.temperatures)
    return (
        f"{'+'.join(trace.workloads)}, {trace.about.model}, T={temperatures}: "
        f"{len(trace.steps):,} trees of {len(prompt_names(trace.replies))} prompts"
    )


def _by_workload(
    trace: Trace, calibrated: Calibrated
) -> dict[str, dict[str, HeldOutErrors]]:
    owner = np.array([workload for workload, _ in prompt_names(trace.replies)])
    held_out, chosen = calibrated.held_out, calibrated.chosen
    return {
        workload: held_out.of_prompts(owner == workload).errors(chosen)
        for workload in trace.workloads
    }


def _error(errors: HeldOutErrors) -> CalibrationError:
    return CalibrationError(
        ece=round(errors.ece.value, 6), brier=round(errors.brier.value, 6)
    )


def _price_us(step: Step, cost: ForwardCost) -> float:
    nodes = np.arange(len(step.parent))
    return float(cost.price(1.0 + len(nodes), step.union(nodes), step.context, 1))


def _topk(trace: Trace) -> int:
    """Children of an expanded node, also where the recorder did not say."""
    ranks = [int(step.rank.max()) for step in trace.steps if len(step.rank)]
    return trace.about.topk or 1 + max(ranks)
