"""What a step costs in a replay: what really ran, at the table's prices.

A policy decides with what it can know before verification, the growth of the union
that is usual on its workload. What it is charged for is what then ran: the fit's price
of so many tokens that woke so many experts, at the context they had; drafting to the
depth that was drafted; and the rest of a step, which is shorter where nothing is
drafted.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evict_profile.pricing import (
    CROWD,
    Features,
    ForwardCost,
    features_at,
    grown_union,
    padded_tokens,
)
from evict_profile.replay.ground import Ground
from evict_profile.runtime import CostTable
from evict_profile.runtime.drafting import DraftClock, Drafting
from evict_profile.stats import Floats, Ints


@dataclass(frozen=True)
class StepPrice:
    """One step's time, in microseconds, and the experts it woke."""

    verify_us: float
    draft_us: float
    fixed_us: float
    union: float

    @property
    def us(self) -> float:
        """The whole step."""
        return self.verify_us + self.draft_us + self.fixed_us


class Prices:
    """The prices of steps of one trace at one batch size."""

    def __init__(
        self, table: CostTable, ground: Ground, batch: int, speed: float = 1.0
    ) -> None:
        """Draft times are the table's; where it has none, the trace's own clocks.

        `speed` brings the trace's times to those of the table; see
        `calibrate.drafting.speed_over`.
        """
        self.table = table
        self.ground = ground
        self.batch = batch
        self._sum = _OneSum(table.cost)
        self._drafting = table.drafting or _clocks_of(ground, speed)

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """What these prices had to assume."""
        found = [*self.table.marks]
        if self._drafting is None:
            found.append("drafting and the host are free: nobody has clocked them")
        else:
            found.extend(self._drafting.marks(self.batch))
        if not self.ground.has_routes:
            found.append("unions are the table's growth: the trace holds no routes")
        if not self.ground.trace.dense:
            found.append("after each step the next recorded one follows, whatever ran")
        return (*found, *self._outside())

    def step(self, rows: Ints, places: Ints, depth: int) -> StepPrice:
        """The price of one step.

        Args:
            rows: int64 [B], the steps of `ground` that run together.
            places: rows of all verified draft nodes in the expert sets.
            depth: levels drafted; 0 is plain decoding.
        """
        tokens = len(rows) + len(places)
        union = self._union(rows, places, tokens)
        context = self.ground.mean_context(rows)
        verify_us = self.verify_us(np.array([tokens]), np.array([union]), context)
        return StepPrice(
            float(verify_us[0]), self.draft_us(depth), self.fixed_us(depth), union
        )

    def verify_us(self, tokens: Ints, union: Floats, context: float) -> Floats:
        """The target's forward over so many tokens and experts, float64 [places]."""
        run = padded_tokens(tokens, self.batch, self.table.ladder)
        low, high = self.table.domain["context"]
        least, most = self.table.domain["batch"]
        size = np.ones(len(run))
        seen = min(max(context, low), high) * size
        batch = min(max(self.batch, least), most) * size
        shape = self.table.cost.shape
        return self._sum.us(features_at(shape, run, union, seen, batch))

    def draft_us(self, depth: int) -> float:
        """Drafting to a depth; levels deeper than clocked take as long as the last."""
        if self._clock is None or not depth:
            return 0.0
        known = self._clock.draft_us
        if depth < len(known):
            return known[depth]
        return known[-1] + (depth - len(known) + 1) * (known[-1] - known[-2:][0])

    def fixed_us(self, depth: int) -> float:
        """The rest of a step, with drafting or without."""
        if self._clock is None:
            return 0.0
        return self._clock.fixed_us if depth else self._clock.plain_fixed_us

    @cached_property
    def _clock(self) -> DraftClock | None:
        return self._drafting.at(self.batch) if self._drafting else None

    def _union(self, rows: Ints, places: Ints, tokens: int) -> float:
        if self.ground.has_routes:
            return self.ground.union(np.concatenate([self.ground.root[rows], places]))
        return float(self.grown(np.array([float(tokens)]))[0])

    def grown(self, tokens: Floats) -> Floats:
        """The table's union for so many tokens of this batch, float64 [places]."""
        table = self.table
        return grown_union(
            tokens, self.batch, table.union_growth, table.growth_by_batch
        )

    def _outside(self) -> tuple[str, ...]:
        """What lies outside the table: batch and context are priced at its edge."""
        contexts, most = self.ground.context, self.batch * (self.ground.nodes + 1)
        asked = {
            "batch": (self.batch, self.batch),
            "context": (int(contexts.min()), int(contexts.max())),
            "tokens": (self.batch, most),
        }
        return tuple(
            f"{axis} {_span(seen)} of the trace, {_span(known)} in the table"
            for axis, seen in asked.items()
            if not _within(seen, known := self.table.domain[axis])
        )


class _OneSum:
    """`ForwardCost` with all its terms in one array: a walk prices one place a step."""

    def __init__(self, cost: ForwardCost) -> None:
        terms = (*cost.layers.terms, *cost.ends.terms)
        us = (cost.layer_scale * cost.layers.us_per_unit, cost.ends.us_per_unit)
        self._us = np.concatenate(us)
        self._low = np.array([[term.low] for term in terms])
        self._span = np.array([[term.high] for term in terms]) - self._low
        crowd = [term.feature == CROWD for term in terms]
        self._crowd = np.array(crowd)[:, None]
        self._names = [
            "rows" if c else t.feature for c, t in zip(crowd, terms, strict=True)
        ]

    def us(self, features: Features) -> Floats:
        """What the fit says, float64 [places]."""
        values = np.array([features[name] for name in self._names]) - self._low
        values = np.minimum(np.maximum(values, 0.0), self._span)
        us: Floats = self._us @ np.where(
            self._crowd, values * features["union"], values
        )
        return us


def _clocks_of(ground: Ground, speed: float) -> Drafting | None:
    clocks = tuple(
        DraftClock(
            c.batch,
            tuple(speed * us for us in c.draft_us),
            speed * c.fixed_us,
            speed * c.plain_fixed_us,
        )
        for c in ground.trace.clocks
    )
    return Drafting(clocks) if clocks else None


def _within(seen: tuple[int, int], known: tuple[int, int]) -> bool:
    return known[0] <= seen[0] and seen[1] <= known[1]


def _span(ends: tuple[int, int]) -> str:
    return f"{ends[0]}" if ends[0] == ends[1] else f"{ends[0]}..{ends[1]}"
