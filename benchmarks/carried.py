"""What a trace of one model says of another: unions, and a table that knows them.

Neighbours in a tree route alike, so their union stays behind uniform routing's; by how
much is what is carried over: U / U_uniform(n) of the trace, times U_uniform(n) of the
other model. Acceptance is taken as it is. Drafting takes a share of a plain step a
level, whichever model that is.
"""

from dataclasses import dataclass, replace

import numpy as np

from evict_profile.calibrate.acceptance import as_acceptance, calibrate
from evict_profile.calibrate.continuation import continuation
from evict_profile.calibrate.growth import (
    Growth,
    Growths,
    as_union_growth,
    measure_growth,
)
from evict_profile.calibrate.nodes import nodes_of
from evict_profile.calibrate.study import workload_name
from evict_profile.config import ModelSpec
from evict_profile.errors import ConfigError, TraceError
from evict_profile.fit.workload import with_workload
from evict_profile.stats import Floats
from evict_profile.table import CostTable, Staircase
from evict_profile.traces import About, Trace
from evict_profile.workload import DraftClock, Drafting


@dataclass(frozen=True)
class Carried:
    """Unions of the traced model, carried over to another."""

    about: About
    model: ModelSpec

    def union(self, tokens: Floats, union: Floats) -> Floats:
        """What these unions of so many tokens are there, float64 [places]."""
        experts, top_k = self.about.experts, self.about.top_k
        uniform = experts * (1.0 - (1.0 - top_k / experts) ** tokens)
        there = np.array([self.model.uniform_union(t) for t in tokens.tolist()])
        share = np.divide(union, uniform, out=np.zeros_like(there), where=uniform > 0)
        carried: Floats = np.minimum(share * there, self.model.moe.num_experts)
        return carried

    def growths(self, found: Growths) -> Growths:
        """Growth by batch, as the table of the other model is to hold it."""
        kept = {batch: self._growth(growth) for batch, growth in found.kept.items()}
        return replace(found, kept=kept)

    def _growth(self, growth: Growth) -> Growth:
        tokens = np.arange(len(growth.union), dtype=np.float64)
        union, low, high = (
            np.maximum.accumulate(self.union(tokens, curve))
            for curve in (growth.union, growth.low, growth.high)
        )
        return Growth(union, low, high)


def informed(
    table: CostTable, learn: Trace, context: int, draft_share: float
) -> CostTable:
    """The large model's table with what a trace tells of drafter, router and drafting.

    Raises:
        TraceError: the trace holds no routes, or has too few prompts.
    """
    growths = measure_growth(learn)
    if growths is None:
        raise TraceError("this trace holds no routes; record them")
    name = workload_name(learn)
    acceptance = as_acceptance(
        calibrate(nodes_of(learn.replies)),
        name,
        len(learn.steps),
        continuation(learn.steps, learn.about.fan),
    )
    carried = Carried(learn.about, table.model).growths(growths)
    growth = as_union_growth(carried, name, table.model, table.axes.max_tokens)
    table = with_workload(table, acceptance, growth, None)
    clocks = tuple(
        draft_clock(nearest(table, batch, context), draft_share, learn.about.depth)
        for batch in table.axes.batch
    )
    return replace(table, drafting=Drafting(name, "a share of a plain step", clocks))


def draft_clock(stairs: Staircase, draft_share: float, depth: int) -> DraftClock:
    """Levels at a share of the plain step of this staircase."""
    level_us = draft_share * stairs.step_cost_us[stairs.batch]
    levels = tuple(d * level_us for d in range(depth + 1))
    return DraftClock(stairs.batch, levels, 0.0, 0.0)


def nearest(table: CostTable, batch: int, context: float) -> Staircase:
    """The staircase of the batch and the context that are nearest, in this order."""
    return min(
        table.staircases,
        key=lambda s: (abs(s.batch - batch), abs(s.context - context)),
    )


def share_in(table: CostTable, context: float) -> float:
    """Time of a draft level over that of a plain step, for one request of a world.

    Raises:
        ConfigError: nobody has clocked drafting for this table.
    """
    if table.drafting is None:
        raise ConfigError(
            "--world-table: holds no times of drafting; give the table that "
            "`evict-profile calibrate` has written, or --draft-share"
        )
    clock = min(table.drafting.batches, key=lambda each: each.batch)
    stairs = nearest(table, clock.batch, context)
    plain_us = stairs.step_cost_us[clock.batch] + clock.plain_fixed_us
    return clock.draft_us[-1] / (len(clock.draft_us) - 1) / plain_us
