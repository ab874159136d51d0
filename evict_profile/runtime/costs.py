"""Costs as a decision reads them, kept from step to step.

Evaluating a place takes hundreds of microseconds, and its answer changes only with the
batch and, slowly, with the context. So each is evaluated once.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from evict_profile.errors import PlanError, TableError
from evict_profile.runtime.decision import Allocation, pools_of, reachable_costs
from evict_profile.stats import Floats
from evict_profile.table import SERVED, CostTable, Outside

CONTEXT_STEP = 128
"""Contexts between the measured ones are evaluated at the nearest multiple: 64 cached
tokens cost far less than the width of any table's interval."""

KEPT = 2048


Costs = tuple[Floats, tuple[str, ...]]
"""Step cost when each pool keeps k nodes, float64 [most + 1], and its caveats."""


class Overhead(NamedTuple):
    """Time of a step beside its verification, with its caveats and parts."""

    us: float = 0.0
    caveats: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()


class CostCache:
    """The costs of one table; see `Truncator`."""

    includes: tuple[str, ...] = ("verify",)

    def __init__(
        self,
        table: CostTable,
        allocation: Allocation,
        capture_sizes: Sequence[int] | None,
        outside: Outside,
    ) -> None:
        if table.origin == SERVED:
            raise PlanError(
                f"{table.path}: holds whole steps of a server, not costs of a tree's "
                "tokens; profile the engine, or take the draft length that "
                "'evict-profile advise' names"
            )
        captured = table.axes.capture_sizes
        if capture_sizes and captured and not (
            allocation == "uniform" and set(capture_sizes) <= set(captured)
        ):  # fmt: skip
            raise PlanError(
                f"{table.path} was measured at captured widths {list(captured)}, and "
                "costs are read at those; leave out the capture sizes "
                f"{list(capture_sizes)}, or give some of those widths with allocation "
                "'uniform'"
            )
        self._table, self._allocation = table, allocation
        self._capture_sizes, self._outside = capture_sizes, outside
        self._least, self._most = table.fit.domain["context"]
        self._measured = {(each.batch, each.context) for each in table.staircases}
        self._kept = lru_cache(KEPT)(self._cost)
        self.overhead = lru_cache(KEPT)(self._overhead)
        self.clock_us = lru_cache(KEPT)(self._clock_us)

    def at(self, batch: int, nodes: int | None, context: float) -> Costs:
        """Costs for B requests of N draft nodes each; None: as many as are covered."""
        near = context
        if (batch, context) not in self._measured:
            near = round(context / CONTEXT_STEP) * CONTEXT_STEP
        near = min(max(near, self._least), self._most)
        if self._least <= context <= self._most:
            return self._kept(batch, nodes, near)
        if self._outside == "refuse":
            self._table.costs(batch, context, self._outside)
        us, caveats = self._kept(batch, nodes, near)
        return us, (*caveats, f"context {context:g} read as {near:g}")

    def _cost(self, batch: int, nodes: int | None, context: float) -> Costs:
        cost = self._table.costs(batch, context, self._outside)
        us, caveats = cost.step_cost_us, cost.caveats
        pools = pools_of(self._allocation, batch)
        if nodes is None:
            nodes = len(us)
        else:
            caveats += self._tree_caveats(batch, nodes, pools)
        return reachable_costs(us, batch, nodes, pools, self._capture_sizes), caveats

    def _tree_caveats(self, batch: int, nodes: int, pools: int) -> tuple[str, ...]:
        whole, most = batch * (nodes + 1), self._table.max_tokens(batch)
        captured = [size * pools for size in self._capture_sizes or ()]
        wanted = min((size for size in captured if size >= whole), default=whole)
        if wanted <= most:
            return ()
        if self._outside == "refuse":
            raise TableError(
                f"{self._table.path}: {batch} trees of {nodes} nodes run as {wanted} "
                f"tokens with their roots, and {most} are covered; draft fewer, "
                "measure wider, or say outside='clamp'"
            )
        return (f"of {wanted} tokens at most {most} are verified",)

    def _clock_us(self, batch: int) -> Floats:
        """Time beside verification by levels drafted, float64 [levels + 1]."""
        if self._table.drafting is None:
            raise not_measured("no time of drafting", self._table)
        clock = self._table.drafting.at(batch)
        return np.array([clock.overhead_us(k) for k in range(clock.max_depth + 1)])

    def _overhead(self, batch: int, levels: int) -> Overhead:
        drafting = self._table.drafting
        if drafting is None:
            return Overhead()
        clock, caveats = drafting.at(batch), drafting.caveats(batch)
        last = clock.max_depth
        if levels > last:
            if self._outside == "refuse":
                raise TableError(
                    f"{self._table.path}: {levels} levels are drafted, and {last} "
                    "were clocked; draft fewer, calibrate deeper, or say "
                    "outside='clamp'"
                )
            caveats += (f"drafting {levels} levels, of which {last} were clocked",)
        return Overhead(clock.overhead_us(levels), caveats, ("draft", "fixed"))


class FixedCosts:
    """Costs that fall with every node up to a width, so that so many are verified."""

    includes: tuple[str, ...] = ()

    def __init__(self, width: int) -> None:
        self._us = np.arange(width, 0.0, -1.0)

    def at(self, batch: int, nodes: int | None, context: float) -> Costs:
        """See `CostCache.at`; nothing is refused."""
        return self._us if nodes is None else self._us[: nodes + 1], ()

    def overhead(self, batch: int, levels: int) -> Overhead:
        """None is covered."""
        return Overhead()


def not_measured(lacks: str, table: CostTable | None) -> PlanError:
    """The refusal of a question on depth that a table cannot answer."""
    return PlanError(
        f"{table.path if table else 'no table'}: {lacks} is known, so that the worth "
        "of a further level is not; measure it with: evict-profile calibrate"
    )
