"""The best way to draft at each batch, and what it is worth over plain decoding.

A step of B requests commits B times the mean committed tokens and takes the price of
what it verifies plus drafting, so that speed over plain decoding is

    committed(way) * T(B tokens) / (T(B * width tokens) + drafting(levels)).

Its interval adds, in quadrature of relative errors, the acceptance's own and that of
the ratio of two prices: of a measured table the intervals of both prices, as if they
erred apart, which is the cautious way; of a composed one the error of its growth, which
is what was compared with served times. Drafting has no interval.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from evict_profile.advice.acceptance import AcceptedLengths
from evict_profile.advice.drafting import DraftCost
from evict_profile.errors import ConfigError
from evict_profile.stats import Estimate
from evict_profile.table import Composition, CostTable, Price

WORTHWHILE = 1.01
"""Speed over plain decoding from which drafting is advised, as a replay advises it."""

STAY = 1.005
"""A schedule changes the draft length where the gain is more than half a per cent."""

TWO_SIDED = 1.96

DEFAULTS = {"sglang": (3, "what SGLang chooses for most MoE models")}
"""Draft lengths of engines that have one, where nobody sets it."""

NO_DEFAULT = (3, "3 drafts; this engine has no default of its own")


@dataclass(frozen=True)
class Way:
    """One way to draft at one batch.

    Attributes:
        index: in the acceptance's ways.
        name: how it is called.
        levels: levels drafted; the draft length K of a chain.
        width: tokens a request verifies.
        committed: tokens a step and request.
        step_us: the whole step.
        speed: over plain decoding.
    """

    index: int
    name: str
    levels: int
    width: int
    committed: float
    step_us: float
    speed: Estimate


@dataclass(frozen=True)
class BatchAdvice:
    """All ways to draft at one batch, plain decoding first.

    Attributes:
        asked: draft length that the engine takes unless told otherwise; None of trees.
    """

    batch: int
    ways: tuple[Way, ...]
    asked: int | None

    @cached_property
    def best(self) -> Way:
        """The fastest way if it gains more than one per cent, else plain decoding."""
        fastest = max(self.ways, key=lambda way: way.speed.value)
        return fastest if fastest.speed.value > WORTHWHILE else self.ways[0]

    @property
    def sure(self) -> bool:
        """Whether the interval settles that drafting pays, or that it does not."""
        if self.best.levels:
            return self.best.speed.low > 1.0
        drafts = self.ways[1:]
        return bool(drafts) and all(way.speed.high < WORTHWHILE for way in drafts)

    @property
    def default(self) -> Way | None:
        """The engine's default, where its acceptance and price are known."""
        return next((way for way in self.ways if way.levels == self.asked), None)

    @property
    def default_loses(self) -> float | None:
        """Share of speed that the default gives away, 0 to 1."""
        if self.default is None:
            return None
        return 1.0 - self.default.speed.value / self.best.speed.value


@dataclass(frozen=True)
class Advisor:
    """A table, an acceptance and a time of drafting, asked batch by batch.

    Attributes:
        context: tokens in a request's KV cache.
        asked: the draft length to compare with; None takes the engine's default.
    """

    table: CostTable
    lengths: AcceptedLengths
    drafting: DraftCost
    context: float
    asked: int | None = None

    @property
    def default(self) -> tuple[int, str]:
        """The draft length that is compared, and whose it is."""
        if self.asked is not None:
            return self.asked, "as asked"
        return DEFAULTS.get(self.table.key.engine, NO_DEFAULT)

    @property
    def batches(self) -> tuple[int, ...]:
        """The table's batches at which a request can verify a draft.

        Raises:
            ConfigError: there is none.
        """
        every = self.table.axes.batch
        if found := tuple(b for b in every if self.table.max_tokens(b) >= 2 * b):
            return found
        raise ConfigError(
            f"{self.table.path}: prices no draft at any of its batches "
            f"{', '.join(map(str, every))}; sweep wider"
        )

    @property
    def largest(self) -> int:
        """The largest of them."""
        return self.batches[-1]

    def at(self, batch: int) -> BatchAdvice:
        """The ways to draft at a batch that the table prices.

        Raises:
            TableError: a batch or context outside the table's domain.
        """
        price = self.table.price(batch, self.context)
        most = len(price.step_cost_us) - 1
        ways = range(len(self.lengths.width))
        priced = [way for way in ways if batch * self.lengths.width[way] <= most]
        found = tuple(self._way(batch, price, way) for way in priced)
        asked = self.default[0] if self.lengths.kind == "chain" else None
        return BatchAdvice(batch, found, asked)

    def _way(self, batch: int, price: Price, index: int) -> Way:
        width, levels = (
            int(each[index]) for each in (self.lengths.width, self.lengths.levels)
        )
        step_us = [
            float(price.step_cost_us[batch * n])
            + self.drafting.us(batch, drafted, self.context)
            for n, drafted in ((1, 0), (width, levels))
        ]
        committed = float(self.lengths.committed[index])
        speed = committed * step_us[0] / step_us[1]
        reach = math.hypot(
            self.lengths.reach[index], self._price_reach(price, batch, width)
        )
        return Way(
            index,
            self.lengths.name(index),
            levels,
            width,
            committed,
            step_us[1],
            Estimate(speed, speed * math.exp(-reach), speed * math.exp(reach)),
        )

    def _price_reach(self, price: Price, batch: int, width: int) -> float:
        """Half of the 95 % interval of T(width) / T(1), relative."""
        if width == 1:
            return 0.0
        made = self.table.provenance
        if isinstance(made, Composition):
            return TWO_SIDED * made.error.growth
        halves = (
            (price.high_us[t] - price.low_us[t]) / 2.0 / price.step_cost_us[t]
            for t in (batch, batch * width)
        )
        return math.hypot(*halves)


@dataclass(frozen=True)
class Stretch:
    """Batches that draft alike, both ends included."""

    first: int
    last: int
    drafts: int


def schedule(advisor: Advisor, longest: int | None = None) -> tuple[Stretch, ...]:
    """The draft length by batch, from 1 to the largest that the table prices.

    Batches below the smallest that is priced draft as that one does.

    A length stays while the best gains no more than half a per cent over it: prices
    between the measured batches are the fit's, and a schedule should not flutter.

    Args:
        longest: the most drafts that the engine can take.

    Raises:
        ConfigError: the acceptance is of trees, or no batch is priced.
    """
    if advisor.lengths.kind != "chain":
        raise ConfigError(
            "a schedule is of draft lengths, and this acceptance is of trees; give "
            "lengths, a rate or metrics"
        )
    smallest, chosen = advisor.batches[0], list[int]()
    for batch in range(smallest, advisor.largest + 1):
        before = chosen[-1] if chosen else None
        chosen.append(_chosen(advisor.at(batch), before, longest))
    return _stretches([chosen[0]] * (smallest - 1) + chosen)


def _chosen(advice: BatchAdvice, before: int | None, longest: int | None) -> int:
    ways = [way for way in advice.ways if longest is None or way.levels <= longest]
    best = BatchAdvice(advice.batch, tuple(ways), advice.asked).best
    same = next((way for way in ways if way.levels == before), None)
    if (
        same
        and same.speed.value * STAY >= best.speed.value
        and (not same.levels or same.speed.value > WORTHWHILE)
    ):
        return same.levels
    return best.levels


def _stretches(drafts: Sequence[int]) -> tuple[Stretch, ...]:
    """Runs of equal lengths, of batches from 1."""
    found, last = [], 0
    for length, run in groupby(drafts):
        first, last = last + 1, last + len(list(run))
        found.append(Stretch(first, last, length))
    return tuple(found)
