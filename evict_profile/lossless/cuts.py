"""Cuts: the truncation rules with their constants, as functions of scores and past.

A cut sees the scores of all requests of a batch and a state that it carries from step
to step. Kept nodes are always closed under parents: scores never rise along a path, and
drafting order puts parents first. A request that has all its tokens has left the batch:
it drafts nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import ClassVar

Scores = tuple[Fraction, ...]
Batch = tuple[Scores, ...]
State = tuple[Fraction, ...]
Kept = frozenset[int]
Costs = tuple[Fraction, ...]
Levels = tuple[int, ...]


@dataclass(frozen=True)
class Spent:
    """What a cut may remember of a step: its scores, what it kept, what came out."""

    scores: Batch
    kept: tuple[Kept, ...]
    emitted: int


class Cut(ABC):
    """A truncation rule; subclasses are dataclasses of its constants."""

    def __str__(self) -> str:
        constants = ", ".join(f"{k} {_plain_text(v)}" for k, v in vars(self).items())
        return f"{type(self).__name__}: {constants}"

    @property
    def start(self) -> State:
        """The state before the first step; most rules have none."""
        return ()

    @abstractmethod
    def keep(self, batch: Batch, state: State) -> tuple[Kept, ...]:
        """The nodes of each request that are verified."""

    def after(self, state: State, spent: Spent) -> State:
        """The state after a step."""
        return state


class WidthCut(Cut):
    """A rule that gives each request a width: that many nodes in the rule's order."""

    by_score: ClassVar[bool] = False
    """Nodes are taken by score, the highest first, not in drafting order."""

    def keep(self, batch: Batch, state: State) -> tuple[Kept, ...]:
        return tuple(self.keep_one(scores, state) for scores in batch)

    def keep_one(self, scores: Scores, state: State) -> Kept:
        """The nodes of one request that are verified, from its own scores."""
        if not self.by_score:
            return first(self.choose(scores, state), scores)
        ordered = tuple(sorted(scores, reverse=True))
        return best(self.choose(ordered, state), scores)

    @abstractmethod
    def choose(self, scores: Scores, state: State) -> int:
        """The width of one request, from its scores in the rule's order."""


@dataclass(frozen=True)
class FixedWidth(WidthCut):
    """The first `width` nodes."""

    width: int

    def choose(self, scores: Scores, state: State) -> int:
        return self.width


@dataclass(frozen=True)
class Lagged(WidthCut):
    """As many nodes as reached `bound` in the step before."""

    bound: Fraction

    @property
    def start(self) -> State:
        return (Fraction(1),)

    def choose(self, scores: Scores, state: State) -> int:
        return int(state[0])

    def after(self, state: State, spent: Spent) -> State:
        return (Fraction(sum(reaching(self.bound, s) for s in spent.scores)),)


@dataclass(frozen=True)
class ScoreThreshold(WidthCut):
    """Every node whose score is at least `bound`."""

    by_score = True
    bound: Fraction

    def choose(self, scores: Scores, state: State) -> int:
        return reaching(self.bound, scores)


@dataclass(frozen=True)
class StopAtRate(WidthCut):
    """Nodes until one is worth less than its marginal cost."""

    costs: Costs
    rate: Fraction

    def choose(self, scores: Scores, state: State) -> int:
        return first_drop(surpluses_of(scores, self.costs, self.rate))


@dataclass(frozen=True)
class StopAtDrop(WidthCut):
    """Nodes until benefit over cost first falls."""

    costs: Costs

    def choose(self, scores: Scores, state: State) -> int:
        return first_drop(ratios_of(scores, self.costs))


@dataclass(frozen=True)
class Ratio(WidthCut):
    """The width of the highest benefit over cost."""

    by_score = True
    costs: Costs

    def choose(self, scores: Scores, state: State) -> int:
        return argmax(ratios_of(scores, self.costs))


@dataclass(frozen=True)
class Rate(WidthCut):
    """The width of the highest benefit less rate times cost."""

    by_score = True
    costs: Costs
    rate: Fraction

    def choose(self, scores: Scores, state: State) -> int:
        return argmax(surpluses_of(scores, self.costs, self.rate))


@dataclass(frozen=True)
class OnlineRate(WidthCut):
    """`Rate` at the rate of tokens over time of the steps before."""

    by_score = True
    costs: Costs

    @property
    def start(self) -> State:
        return (Fraction(1), self.costs[0])

    def choose(self, scores: Scores, state: State) -> int:
        return argmax(surpluses_of(scores, self.costs, state[0] / state[1]))

    def after(self, state: State, spent: Spent) -> State:
        time = self.costs[sum(map(len, spent.kept))]
        return (state[0] + spent.emitted, state[1] + time)


@dataclass(frozen=True)
class WidthFromRate(OnlineRate):
    """All nodes while past tokens over past time exceed `bound`, else one."""

    by_score = False
    bound: Fraction

    def choose(self, scores: Scores, state: State) -> int:
        return len(scores) if state[0] / state[1] > self.bound else 1


@dataclass(frozen=True)
class Depth(Cut):
    """The first level, and each further one while `goes_on`; `levels` of each node."""

    levels: Levels

    def keep(self, batch: Batch, state: State) -> tuple[Kept, ...]:
        depth = 1
        drafting = tuple(scores for scores in batch if scores)
        while depth < max(self.levels) and self.goes_on(drafting, depth):
            depth += 1
        return tuple(down_to(depth, self.levels, scores) for scores in batch)

    @abstractmethod
    def goes_on(self, drafting: Batch, depth: int) -> bool:
        """Whether the level after `depth` is drafted, from scores down to there."""

    def sum_at(self, drafting: Batch, depth: int) -> Fraction:
        """Sum of a level's scores over the batch."""
        nodes = [k for k, level in enumerate(self.levels) if level == depth]
        return sum((scores[k] for scores in drafting for k in nodes), Fraction(0))


@dataclass(frozen=True)
class DepthAtBound(Depth):
    """While the scores of the deepest level sum to at least `bound`."""

    bound: Fraction

    def goes_on(self, drafting: Batch, depth: int) -> bool:
        return self.sum_at(drafting, depth) >= self.bound


@dataclass(frozen=True)
class DepthAtRatio(Depth):
    """While a level, expected to be worth `share` of the one before, lifts the ratio.

    What `DecodingStep.deeper` does, with all that is drafted verified.
    """

    costs: Costs
    share: Fraction

    def goes_on(self, drafting: Batch, depth: int) -> bool:
        certain = Fraction(max(len(drafting), 1))
        sums = [self.sum_at(drafting, level) for level in range(1, depth + 1)]
        tokens = sum(sums, start=certain)
        following = self.share * sums[-1]
        return (tokens + following) * self._cost(depth) > tokens * self._cost(depth + 1)

    def _cost(self, depth: int) -> Fraction:
        return self.costs[sum(level <= depth for level in self.levels)]


def first(width: int, scores: Scores) -> Kept:
    """The first nodes in drafting order."""
    return frozenset(range(min(width, len(scores))))


def best(width: int, scores: Scores) -> Kept:
    """The nodes of the highest scores; of equals the one drafted first."""
    return frozenset(sorted(range(len(scores)), key=lambda k: -scores[k])[:width])


def reaching(bound: Fraction, scores: Scores) -> int:
    """How many scores are at least `bound`."""
    return sum(score >= bound for score in scores)


def down_to(depth: int, levels: Levels, scores: Scores) -> Kept:
    """All nodes of a request down to a depth; none where it drafted none."""
    return frozenset(k for k in range(len(scores)) if levels[k] <= depth)


def gains(scores: Iterable[Fraction]) -> list[Fraction]:
    """Expected tokens by width: the one always emitted, and the scores so far."""
    return list(accumulate(scores, initial=Fraction(1)))


def ratios_of(scores: Scores, costs: Costs) -> list[Fraction]:
    """Expected tokens over cost, by width."""
    return [gain / cost for gain, cost in zip(gains(scores), costs, strict=False)]


def surpluses_of(scores: Scores, costs: Costs, rate: Fraction) -> list[Fraction]:
    """Expected tokens less what the time of the step should earn, by width."""
    pairs = zip(gains(scores), costs, strict=False)
    return [gain - rate * cost for gain, cost in pairs]


def argmax(values: Sequence[Fraction]) -> int:
    """The place of the highest value, the first of equals."""
    return values.index(max(values))


def first_drop(values: Sequence[Fraction]) -> int:
    """The place before the first that is lower than the one before it."""
    drops = (k for k, (here, after) in enumerate(pairwise(values)) if after < here)
    return next(drops, len(values) - 1)


def _plain_text(value: Fraction | int | tuple[Fraction | int, ...]) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
