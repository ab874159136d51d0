"""Costs as a decision reads them, kept from step to step.

An evaluation takes hundreds of microseconds, and depends on batch and context alone.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Literal, NamedTuple, get_args

import numpy as np

from evict_profile.errors import ConfigError, DataError
from evict_profile.runtime.learning import ForwardParts, Learner
from evict_profile.stats import Floats
from evict_profile.table import CostTable, Outside

CONTEXT_STEP = 128
"""Contexts between the measured ones are evaluated at the nearest multiple: 64 cached
tokens cost far less than the width of any table's interval."""

CACHE_SIZE = 2048

Allocation = Literal["batch", "uniform"]
ALLOCATIONS = get_args(Allocation)

Place = tuple[int, int | None, float]
"""Batch, nodes of a request (None: all that are covered), and context, as read."""

Costs = tuple[Floats, tuple[str, ...], Place]
"""Step cost when each pool keeps k nodes, float64 [most + 1], its caveats and place."""


class Overhead(NamedTuple):
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
        captured = table.axes.capture_sizes
        if capture_sizes and captured and not (
            allocation == "uniform" and set(capture_sizes) <= set(captured)
        ):  # fmt: skip
            raise ConfigError(
                f"{table.path} was measured at captured widths {list(captured)}, and "
                "costs are read at those; leave out the capture sizes "
                f"{list(capture_sizes)}, or give some of those widths with allocation "
                "'uniform'"
            )
        self._table, self._allocation = table, allocation
        self._capture_sizes, self._outside = capture_sizes, outside
        self._contexts = lru_cache(CACHE_SIZE)(table.contexts)
        self._measured = {(each.batch, each.context) for each in table.staircases}
        self._cached_cost = lru_cache(CACHE_SIZE)(self._cost)
        self._learnt_us = lru_cache(CACHE_SIZE)(self._learnt)
        self._parts = lru_cache(CACHE_SIZE)(partial(ForwardParts.of, table))
        self.learner = Learner()
        self.overhead = lru_cache(CACHE_SIZE)(self._overhead)
        self.clock_us = lru_cache(CACHE_SIZE)(self._clock_us)

    def at(self, batch: int, nodes: int | None, context: float) -> Costs:
        """Costs for B requests of N draft nodes each; None: as many as are covered."""
        near = context
        if (batch, context) not in self._measured:
            near = round(context / CONTEXT_STEP) * CONTEXT_STEP
        least, most = self._contexts(batch)
        near = min(max(near, least), most)
        place = batch, nodes, near
        us, caveats = self._cached_cost(*place)
        if self.learner.version:
            us = self._learnt_us(*place, self.learner.version)
        if least <= context <= most:
            return us, caveats, place
        if self._outside == "refuse":
            self._table.costs(batch, context, self._outside)
        return us, (*caveats, f"context {context:g} read as {near:g}"), place

    def of_table(self, place: Place) -> Floats:
        """Costs as the table has them, whatever was learnt."""
        return self._cached_cost(*place)[0]

    def observe(self, place: Place, tokens: int, verify_us: float) -> None:
        """Learn from the time of the verification of so many tokens."""
        batch, _, context = place
        self.learner.observe(self._parts(batch, context).at(tokens), verify_us)

    @property
    def forced(self) -> float | None:
        """Share of the largest width that this step verifies, if one is forced."""
        return self.learner.forced

    def to_decide(self, us: Floats) -> Floats:
        """Costs to decide by: `us`, or costs that fall up to a forced width."""
        if self.forced is None:
            return us
        return np.arange(round(self.forced * (len(us) - 1)) + 1, 0.0, -1.0)

    def forward_us(self, place: Place, tokens: int) -> float:
        """The table's forward of so many tokens, whatever was learnt."""
        equal, growth, _ = self._parts(place[0], place[2]).at(tokens)
        return equal + growth

    def _learnt(
        self, batch: int, nodes: int | None, context: float, version: int
    ) -> Floats:
        """As `_cost`, of the forward that was learnt."""
        us = self.learner.corrected(self._parts(batch, context))
        us = self._with_tokens(us, batch)
        pools = pools_of(self._allocation, batch)
        nodes = len(us) if nodes is None else nodes
        return reachable_costs(us, batch, nodes, pools, self._capture_sizes)

    def _cost(
        self, batch: int, nodes: int | None, context: float
    ) -> tuple[Floats, tuple[str, ...]]:
        cost = self._table.costs(batch, context, self._outside)
        us, caveats = self._with_tokens(cost.step_cost_us, batch), cost.caveats
        pools = pools_of(self._allocation, batch)
        if nodes is None:
            nodes = len(us)
        else:
            caveats += self._tree_caveats(batch, nodes, pools)
        return reachable_costs(us, batch, nodes, pools, self._capture_sizes), caveats

    def _with_tokens(self, us: Floats, batch: int) -> Floats:
        """Forwards, with what their tokens add beside them."""
        if not (drafting := self._table.drafting):
            return us
        captured = self._table.axes.capture_sizes
        return us + drafting.tokens_us(np.arange(len(us)), batch, captured)

    def _tree_caveats(self, batch: int, nodes: int, pools: int) -> tuple[str, ...]:
        whole, most = batch * (nodes + 1), self._table.max_tokens(batch)
        captured = [size * pools for size in self._capture_sizes or ()]
        wanted = min((size for size in captured if size >= whole), default=whole)
        if wanted <= most:
            return ()
        if self._outside == "refuse":
            raise DataError(
                f"{self._table.path}: {batch} trees of {nodes} nodes run as {wanted} "
                f"tokens with their roots, and {most} are covered; draft fewer, "
                "measure wider, or say outside='clamp'"
            )
        return (f"of {wanted} tokens at most {most} are verified",)

    def _clock_us(self, batch: int) -> tuple[float, ...]:
        """Time beside verification by levels drafted, from none on."""
        if self._table.drafting is None:
            raise self.not_measured("no time of drafting")
        clock = self._table.drafting.at(batch)
        return tuple(clock.beside_us(k) for k in range(clock.max_depth + 1))

    def _overhead(self, batch: int, levels: int) -> Overhead:
        drafting = self._table.drafting
        if drafting is None:
            return Overhead()
        clock, caveats = drafting.at(batch), drafting.caveats(batch)
        last = clock.max_depth
        if levels > last:
            if self._outside == "refuse":
                raise DataError(
                    f"{self._table.path}: {levels} levels are drafted, and {last} "
                    "were clocked; draft fewer, calibrate deeper, or say "
                    "outside='clamp'"
                )
            caveats += (f"drafting {levels} levels, of which {last} were clocked",)
        return Overhead(clock.beside_us(levels), caveats, ("draft", "fixed"))

    def not_measured(self, lacks: str) -> ConfigError:
        return ConfigError(
            f"{self._table.path}: {lacks} is known, so that the worth of a further "
            "level is not; measure it with: evict-profile calibrate"
        )


class FixedCosts:
    """Costs that fall with every node up to a width, so that so many are verified."""

    includes: tuple[str, ...] = ()

    def __init__(self, width: int, depth: int) -> None:
        self.depth = depth
        self._us = np.arange(width, 0.0, -1.0)

    def at(self, batch: int, nodes: int | None, context: float) -> Costs:
        us = self._us if nodes is None else self._us[: nodes + 1]
        return us, (), (batch, nodes, context)

    def observe(self, place: Place, tokens: int, verify_us: float) -> None:
        """A fixed width learns nothing."""

    def to_decide(self, us: Floats) -> Floats:
        return us

    def of_table(self, place: Place) -> Floats:
        """A fixed width has no other costs."""
        return self._us

    def overhead(self, batch: int, levels: int) -> Overhead:
        return Overhead()


def pools_of(allocation: Allocation, batch: int) -> int:
    """Pools in which nodes compete; k nodes of each verify batch + k * pools tokens."""
    return 1 if allocation == "batch" else batch


def reachable_costs(
    cost_us: Floats,
    batch: int,
    nodes: int,
    pools: int,
    capture_sizes: Sequence[int] | None,
) -> Floats:
    """Step cost when each pool keeps k nodes, k = 0..most, float64 [most + 1].

    `cost_us[t]` is the cost of t tokens in all, read at the next captured size.
    """
    used = cost_us[batch:]
    if len(used) and not (used.min() > 0.0 and np.isfinite(used.max())):
        raise ConfigError("cost_us holds a cost that is not finite or not above zero")
    padded = (
        cost_us if capture_sizes is None else _padded(cost_us, pools, capture_sizes)
    )
    # A copy, because kernels read it by its first address, and owners keep theirs.
    costs = np.array(padded[batch::pools][: batch * nodes // pools + 1], np.float64)
    if not len(costs):
        raise ConfigError(
            f"a batch of {batch} verifies {batch} tokens at the least, and the costs"
            f"{' on these capture sizes' if capture_sizes else ''} reach "
            f"{max(len(padded) - 1, 0)}; "
            "give costs, and capture sizes, that reach further"
        )
    return costs


def _padded(cost_us: Floats, pools: int, capture_sizes: Sequence[int]) -> Floats:
    captured = np.array(capture_sizes, dtype=np.int64) * pools
    captured = captured[captured < len(cost_us)]
    if not len(captured):
        return cost_us[:0]
    tokens = np.arange(captured[-1] + 1)
    return cost_us[captured[np.searchsorted(captured, tokens)]]
