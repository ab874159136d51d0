"""Cuts: the truncation rules with their constants, as functions of scores and past.

A cut sees the scores of all requests of a batch and a state that it carries from
step to step. The rules here look at one request at a time; `batches` has those that
look at several. Kept nodes are always closed under parents: scores never rise along
a path, and drafting order puts parents first.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from evict_profile.lossless.accept import Kept
from evict_profile.lossless.drafts import Scores

Costs = tuple[Fraction, ...]
State = tuple[Fraction, ...]
Batch = tuple[Scores, ...]


@dataclass(frozen=True)
class Spent:
    """What a cut may remember of a step: its scores, what it kept, what came out."""

    scores: Batch
    kept: tuple[Kept, ...]
    emitted: int


class Cut(ABC):
    """A truncation rule; subclasses are dataclasses of its constants."""

    def __str__(self) -> str:
        constants = ", ".join(f"{k} {_plainly(v)}" for k, v in vars(self).items())
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


class LoneCut(Cut):
    """A rule that looks at one request at a time."""

    def keep(self, batch: Batch, state: State) -> tuple[Kept, ...]:
        return tuple(self.keep_alone(scores, state) for scores in batch)

    @abstractmethod
    def keep_alone(self, scores: Scores, state: State) -> Kept:
        """The nodes of one request that are verified, from its own scores."""


@dataclass(frozen=True)
class Fixed(LoneCut):
    """The first `width` nodes in drafting order."""

    width: int

    def keep_alone(self, scores: Scores, state: State) -> Kept:
        return first(self.width, scores)


@dataclass(frozen=True)
class Lagged(LoneCut):
    """As many nodes, in drafting order, as reached `bound` in the step before."""

    bound: Fraction

    @property
    def start(self) -> State:
        return (Fraction(1),)

    def keep_alone(self, scores: Scores, state: State) -> Kept:
        return first(int(state[0]), scores)

    def after(self, state: State, spent: Spent) -> State:
        reached = sum(s >= self.bound for scores in spent.scores for s in scores)
        return (Fraction(reached),)


@dataclass(frozen=True)
class Threshold(LoneCut):
    """Every node whose score is at least `bound`."""

    bound: Fraction

    def keep_alone(self, scores: Scores, state: State) -> Kept:
        return frozenset(k for k, score in enumerate(scores) if score >= self.bound)


@dataclass(frozen=True)
class Best(LoneCut):
    """The `width` nodes of the highest scores."""

    width: int

    def keep_alone(self, scores: Scores, state: State) -> Kept:
        return best(self.width, scores)


@dataclass(frozen=True)
class StopAtPrice(LoneCut):
    """Nodes in drafting order until one is worth less than its marginal cost."""

    costs: Costs
    price: Fraction

    def keep_alone(self, scores: Scores, state: State) -> Kept:
        for k, score in enumerate(scores):
            if score < self.price * (self.costs[k + 1] - self.costs[k]):
                return first(k, scores)
        return first(len(scores), scores)


@dataclass(frozen=True)
class StopByScore(StopAtPrice):
    """`StopAtPrice` with nodes taken by score, not in drafting order."""

    def keep_alone(self, scores: Scores, state: State) -> Kept:
        ordered = tuple(sorted(scores, reverse=True))
        return best(len(super().keep_alone(ordered, state)), scores)


@dataclass(frozen=True)
class StopAtDrop(LoneCut):
    """Nodes in drafting order until benefit over cost first falls."""

    costs: Costs

    def keep_alone(self, scores: Scores, state: State) -> Kept:
        pairs = zip(gains(scores), self.costs, strict=False)
        ratios = [gain / cost for gain, cost in pairs]
        for k in range(len(scores)):
            if ratios[k + 1] < ratios[k]:
                return first(k, scores)
        return first(len(scores), scores)


@dataclass(frozen=True)
class Ratio(LoneCut):
    """The width of the highest benefit over cost; nodes by score."""

    costs: Costs

    def keep_alone(self, scores: Scores, state: State) -> Kept:
        pairs = zip(gains(sorted(scores, reverse=True)), self.costs, strict=False)
        return best(argmax([gain / cost for gain, cost in pairs]), scores)


@dataclass(frozen=True)
class Rate(LoneCut):
    """The width of the highest benefit less price times cost; nodes by score."""

    costs: Costs
    price: Fraction

    def keep_alone(self, scores: Scores, state: State) -> Kept:
        return best_at_price(scores, self.costs, self.price)


@dataclass(frozen=True)
class OnlineRate(LoneCut):
    """`Rate` at the price of tokens over time of the steps before."""

    costs: Costs

    @property
    def start(self) -> State:
        return (Fraction(1), self.costs[0])

    def keep_alone(self, scores: Scores, state: State) -> Kept:
        return best_at_price(scores, self.costs, state[0] / state[1])

    def after(self, state: State, spent: Spent) -> State:
        time = self.costs[sum(map(len, spent.kept))]
        return (state[0] + spent.emitted, state[1] + time)


@dataclass(frozen=True)
class Throughput(OnlineRate):
    """The width of the highest throughput, past and present; nodes by score.

    Scores count as often as past ones came true: what `runtime.past` learns.
    """

    def keep_alone(self, scores: Scores, state: State) -> Kept:
        tokens, time, accepted, claimed = state
        trust = (1 + accepted) / (1 + claimed)
        ordered = sorted((trust * score for score in scores), reverse=True)
        pairs = zip(gains(ordered), self.costs, strict=False)
        together = [(tokens + gain) / (time + cost) for gain, cost in pairs]
        return best(argmax(together), scores)

    @property
    def start(self) -> State:
        return (Fraction(0),) * 4

    def after(self, state: State, spent: Spent) -> State:
        kept = [
            s[k] for s, own in zip(spent.scores, spent.kept, strict=True) for k in own
        ]
        step = (
            Fraction(spent.emitted),
            self.costs[len(kept)],
            Fraction(spent.emitted - 1),
            sum(kept, start=Fraction(0)),
        )
        return tuple(past + new for past, new in zip(state, step, strict=True))


@dataclass(frozen=True)
class WidthFromRate(OnlineRate):
    """All nodes while past tokens over past time exceed `bound`, else one."""

    bound: Fraction

    def keep_alone(self, scores: Scores, state: State) -> Kept:
        fast = state[0] / state[1] > self.bound
        return first(len(scores) if fast else 1, scores)


def first(width: int, scores: Scores) -> Kept:
    """The first nodes in drafting order."""
    return frozenset(range(min(width, len(scores))))


def best(width: int, scores: Scores) -> Kept:
    """The nodes of the highest scores; of equals the one drafted first."""
    return frozenset(sorted(range(len(scores)), key=lambda k: -scores[k])[:width])


def gains(scores: Iterable[Fraction]) -> list[Fraction]:
    """Expected tokens by width: the one always emitted, and the scores so far."""
    return list(accumulate(scores, initial=Fraction(1)))


def argmax(values: Sequence[Fraction]) -> int:
    """The place of the highest value, the first of equals."""
    return values.index(max(values))


def best_at_price(scores: Scores, costs: Costs, price: Fraction) -> Kept:
    """The nodes that `Rate` keeps."""
    pairs = zip(gains(sorted(scores, reverse=True)), costs, strict=False)
    return best(argmax([gain - price * cost for gain, cost in pairs]), scores)


def _plainly(value: Fraction | int | Costs) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
