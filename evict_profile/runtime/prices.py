"""Costs as a decision reads them, kept from step to step.

Pricing a place takes hundreds of microseconds and its answer changes only with the
batch and, slowly, with the context. So each is priced once and kept, on the device
that decides.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from evict_profile.errors import PlanError, TableError
from evict_profile.runtime.decision import Rule, reachable_costs
from evict_profile.stats import Floats
from evict_profile.table import CostTable, DraftClock, Outside

CONTEXT_STEP = 128
"""Contexts between the measured ones are priced at the nearest multiple: 64 cached
tokens cost far less than the width of any table's interval."""

KEPT = 2048


class Costs(NamedTuple):
    """Step cost when each pool keeps k nodes, float64 [most + 1], and its caveats.

    Attributes:
        context: at which it is the price.
    """

    us: Floats
    caveats: tuple[str, ...]
    context: float


class Beside(Struct, frozen=True):
    """Time of a step that its verification costs leave out, its caveats and parts."""

    us: float
    caveats: tuple[str, ...]
    includes: tuple[str, ...]


NOTHING_BESIDE = Beside(0.0, (), ())
DRAFTED = ("draft", "fixed")


class Prices:
    """The costs of one table under one rule.

    Attributes:
        includes: parts of a step that they are the time of.
    """

    includes: tuple[str, ...] = ("verify",)

    def __init__(
        self,
        table: CostTable,
        rule: Rule,
        ladder: Sequence[int] | None,
        outside: Outside,
    ) -> None:
        """See `Truncator`.

        Raises:
            PlanError: a ladder that the table's own does not hold.
        """
        if ladder and table.axes.ladder:
            _require_measured(table, rule, ladder)
        self._table = table
        self._rule = rule
        self._ladder = ladder
        self._outside = outside
        self._least, self._most = table.fit.domain["context"]
        self._measured = {(each.batch, each.context) for each in table.staircases}
        self._kept = lru_cache(KEPT)(self._price)
        self.beside = lru_cache(KEPT)(self._beside)
        self.on_device = lru_cache(KEPT)(self._price_on_device)

    def at(self, batch: int, nodes: int | None, context: float) -> Costs:
        """Costs for B requests of N draft nodes each; None: as many as are priced.

        Raises:
            TableError: outside the table's domain, and that is refused.
            PlanError: no size that is priced holds the batch.
        """
        is_measured = (batch, context) in self._measured
        near = context if is_measured else round(context / CONTEXT_STEP) * CONTEXT_STEP
        if self._least <= context <= self._most:
            return self._kept(batch, nodes, near)
        if self._outside == "refuse":
            self._table.price(batch, context, self._outside)
        us, caveats, priced_at = self._kept(batch, nodes, near)
        marks = (*caveats, f"context {context:g} priced as {priced_at:g}")
        return Costs(us, marks, priced_at)

    def sizes(self, batch: int, nodes: int) -> int:
        """Sizes that are priced at the smallest context, where most were measured."""
        return len(self.at(batch, nodes, self._least).us)

    def clock_us(self, batch: int) -> Floats:
        """Time beside verification by levels drafted, float64 [levels + 1].

        Raises:
            PlanError: it was not measured.
        """
        if self._table.drafting is None:
            raise not_measured("no time of drafting", self._table)
        clock = self._table.drafting.at(batch)
        return _clock_us(clock, clock.max_depth)

    def _beside(self, batch: int, deepest: int) -> Beside:
        """Time beside verification of a step that drafts so many levels.

        Raises:
            TableError: more levels than were clocked, and that is refused.
        """
        drafting = self._table.drafting
        if drafting is None:
            return NOTHING_BESIDE
        clock, caveats = drafting.at(batch), drafting.caveats(batch)
        last = clock.max_depth
        if deepest > last:
            if self._outside == "refuse":
                raise TableError(
                    f"{self._table.path}: {deepest} levels are drafted, and {last} "
                    "were clocked; draft fewer, calibrate deeper, or say "
                    "outside='clamp'"
                )
            caveats += (f"drafting {deepest} levels, of which {last} were clocked",)
        return Beside(clock.overhead_us(deepest), caveats, DRAFTED)

    def beside_on_device(
        self, batch: int, levels: int, device: torch.device
    ) -> Tensor | None:
        """`Beside.us` by level, float64 [levels + 1]."""
        drafting = self._table.drafting
        return _on_device(drafting.at(batch), levels, device) if drafting else None

    def _price(self, batch: int, nodes: int | None, near: float) -> Costs:
        context = min(max(near, self._least), self._most)
        price = self._table.price(batch, context, self._outside)
        us, caveats = price.step_cost_us, price.caveats
        if nodes is None:
            nodes = len(us)
        else:
            caveats += self._tree_marks(batch, nodes)
        costs = reachable_costs(us, batch, nodes, self._rule, self._ladder)
        return Costs(costs, caveats, context)

    def _price_on_device(
        self, batch: int, nodes: int, context: float, device: torch.device
    ) -> Tensor:
        """`Costs.us` on a device, of a `Costs.context`; copied when first asked for."""
        costs = torch.from_numpy(self._kept(batch, nodes, context).us)
        return costs.to(device, non_blocking=True)

    def _tree_marks(self, batch: int, nodes: int) -> tuple[str, ...]:
        most, wanted = self._table.max_tokens(batch), self._whole(batch, nodes)
        if wanted <= most:
            return ()
        if self._outside == "refuse":
            raise TableError(
                f"{self._table.path}: {batch} trees of {nodes} nodes run as {wanted} "
                f"tokens with their roots, and {most} are priced; draft fewer, "
                "measure wider, or say outside='clamp'"
            )
        return (f"of {wanted} tokens at most {most} are verified",)

    def _whole(self, batch: int, nodes: int) -> int:
        """Tokens that run when everything is verified."""
        whole = batch * (nodes + 1)
        rungs = [size * self._rule.pools(batch) for size in self._ladder or ()]
        return min((size for size in rungs if size >= whole), default=whole)


class FixedPrices:
    """Prices that fall with every node up to a width: to verify so many is the best.

    They take the place of `Prices` where the width is fixed, so that a fixed width is
    decided by the very operations, on every device; nobody pays them.
    """

    includes: tuple[str, ...] = ()

    def __init__(self, width: int) -> None:
        """`width` tokens a request, its root included."""
        self._us = np.arange(width, 0.0, -1.0)
        self._kept_on_device = lru_cache(None)(torch.from_numpy(self._us).to)

    def at(self, batch: int, nodes: int | None, context: float) -> Costs:
        """See `Prices.at`; nothing is refused."""
        us = self._us if nodes is None else self._us[: nodes + 1]
        return Costs(us, (), context)

    def sizes(self, batch: int, nodes: int) -> int:
        """See `Prices.sizes`."""
        return len(self.at(batch, nodes, 0.0).us)

    def on_device(
        self, batch: int, nodes: int, context: float, device: torch.device
    ) -> Tensor:
        """See `Prices.on_device`."""
        return self._kept_on_device(device)[: nodes + 1]

    def clock_us(self, batch: int) -> Floats:
        """A fixed depth is not priced either."""
        return np.zeros(1)

    def beside(self, batch: int, deepest: int) -> Beside:
        """See `Prices.beside`."""
        return NOTHING_BESIDE

    def beside_on_device(self, batch: int, levels: int, device: torch.device) -> None:
        """See `Prices.beside_on_device`."""


def not_measured(lacks: str, table: CostTable | None) -> PlanError:
    """The refusal of a question on depth that a table cannot answer."""
    path = table.path if table else "no table"
    return PlanError(
        f"{path}: {lacks} is known, so that the worth of a further level is "
        "not; measure it with: evict-profile calibrate"
    )


@lru_cache(KEPT)
def _clock_us(clock: DraftClock, levels: int) -> Floats:
    return np.array([clock.overhead_us(level) for level in range(levels + 1)])


@lru_cache(KEPT)
def _on_device(clock: DraftClock, levels: int, device: torch.device) -> Tensor:
    return torch.from_numpy(_clock_us(clock, levels)).to(device, non_blocking=True)


def _require_measured(table: CostTable, rule: Rule, ladder: Sequence[int]) -> None:
    if rule.allocation == "uniform" and set(ladder) <= set(table.axes.ladder):
        return
    raise PlanError(
        f"{table.path} was measured at captured widths {list(table.axes.ladder)}, and "
        f"costs are read at those; leave out the ladder {list(ladder)}, or with "
        "allocation 'uniform' give some of those widths"
    )
