"""Everything that a trace says of a workload, beside the table that it is for."""

from dataclasses import dataclass

import numpy as np

from evict_profile.calibrate.acceptance import Calibrated, as_acceptance, calibrate
from evict_profile.calibrate.continuation import continuation
from evict_profile.calibrate.drafting import drafting_of, speed_over
from evict_profile.calibrate.growth import (
    Growths,
    as_union_growth,
    measure_growth,
)
from evict_profile.calibrate.held_out import HeldOutErrors
from evict_profile.calibrate.nodes import nodes_of, prompt_names
from evict_profile.calibrate.prices import PriceCheck, check_prices
from evict_profile.fit.fitted import cost_of
from evict_profile.fit.workload import with_workload
from evict_profile.stats import Floats
from evict_profile.table import CostTable
from evict_profile.traces import Trace
from evict_profile.traces.trace import check_same_model, check_trees
from evict_profile.workload import Drafting, UnionGrowth


@dataclass(frozen=True, eq=False)
class Study:
    """What was found; None where the trace does not hold what that needs.

    Attributes:
        name: the workload, as the table will name it.
        by_workload: held-out errors on the prompts of each workload.
        continuation: acceptance of an accepted node's children, by rank.
        prices: the table's prices against the trace's clocks.
    """

    trace: Trace
    name: str
    calibrated: Calibrated
    by_workload: dict[str, dict[str, HeldOutErrors]]
    continuation: Floats
    growths: Growths | None
    drafting: Drafting | None
    prices: PriceCheck | None


def study(trace: Trace, table: CostTable) -> Study:
    """Learn acceptance, growth and drafting times, and look at the table's prices.

    Raises:
        TraceError: the trace is of another model than the table, or has too few
            prompts.
    """
    check_same_model(trace.about, table.model)
    check_trees(trace)
    name, calibrated = workload_name(trace), calibrate(nodes_of(trace.replies))
    speed = speed_over(trace.about, table)
    return Study(
        trace=trace,
        name=name,
        calibrated=calibrated,
        by_workload=_by_workload(trace, calibrated),
        continuation=continuation(trace.steps, _fan(trace)),
        growths=measure_growth(trace),
        drafting=drafting_of(trace, name, speed),
        prices=check_prices(trace, cost_of(table).forward, speed),
    )


def calibrated_table(found: Study, table: CostTable) -> CostTable:
    """The table with what was found; what the trace cannot tell stays as it was."""
    steps = len(found.trace.steps)
    return with_workload(
        table,
        as_acceptance(found.calibrated, found.name, steps, found.continuation),
        _growth(found, table),
        found.drafting or table.drafting,
    )


def _growth(found: Study, table: CostTable) -> UnionGrowth:
    if found.growths is None:
        return table.union_growth
    tokens = table.axes.max_tokens
    return as_union_growth(found.growths, found.name, table.model, tokens)


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


def _fan(trace: Trace) -> int:
    ranks = [int(step.rank.max()) for step in trace.steps if len(step.rank)]
    return trace.about.fan or 1 + max(ranks)
