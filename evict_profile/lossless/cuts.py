"""Cuts: the truncation rules with their constants, as functions of scores and past.

A cut sees the scores of all requests of a batch and a state that it carries from step
to step. Kept nodes are always closed under parents: scores never rise along a path, and
drafting order puts parents first. A request that has all its tokens has left the batch:
it drafts nothing.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from evict_profile.lossless.enumeration import Batch, Cut, Kept, Scores, Spent, State

Costs = tuple[Fraction, ...]
Levels = tuple[int, ...]


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

    Scores count as often as past ones came true: what `runtime.history` learns.
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

    def at(self, drafting: Batch, depth: int) -> Fraction:
        """Sum of a level's scores over the batch."""
        return sum(
            (
                s[k]
                for s in drafting
                for k, own in enumerate(self.levels)
                if own == depth
            ),
            start=Fraction(0),
        )


@dataclass(frozen=True)
class DepthAtBound(Depth):
    """While the scores of the deepest level sum to at least `bound`."""

    bound: Fraction

    def goes_on(self, drafting: Batch, depth: int) -> bool:
        return self.at(drafting, depth) >= self.bound


@dataclass(frozen=True)
class DepthAtRatio(Depth):
    """While a level, expected to be worth `share` of the one before, lifts the ratio.

    What `Truncator.deeper` does, with all that is drafted verified.
    """

    costs: Costs
    share: Fraction

    def goes_on(self, drafting: Batch, depth: int) -> bool:
        certain = Fraction(max(len(drafting), 1))
        tokens = sum((self.at(drafting, d) for d in range(1, depth + 1)), start=certain)
        following = self.share * self.at(drafting, depth)
        return (tokens + following) * self._cost(depth) > tokens * self._cost(depth + 1)

    def _cost(self, depth: int) -> Fraction:
        return self.costs[sum(level <= depth for level in self.levels)]


@dataclass(frozen=True)
class DepthThenRatio(DepthAtBound):
    """A depth, and of the nodes down to there those of the highest ratio."""

    costs: Costs

    def keep(self, batch: Batch, state: State) -> tuple[Kept, ...]:
        drafted = super().keep(batch, state)
        cut = Ratio(self.costs)
        return tuple(
            frozenset(nodes[k] for k in cut.keep_alone(own, state))
            for nodes, own in (
                (sorted(kept), tuple(scores[k] for k in sorted(kept)))
                for kept, scores in zip(drafted, batch, strict=True)
            )
        )


@dataclass(frozen=True)
class DroppedLevel(LoneCut):
    """All levels, less the last where its own scores sum to less than `bound`."""

    levels: Levels
    bound: Fraction

    def keep_alone(self, scores: Scores, state: State) -> Kept:
        last = max(self.levels)
        worth = sum(
            s for s, own in zip(scores, self.levels, strict=False) if own == last
        )
        return down_to(last if worth >= self.bound else last - 1, self.levels, scores)


def down_to(depth: int, levels: Levels, scores: Scores) -> Kept:
    """All nodes of a request down to a depth; none where it drafted none."""
    return frozenset(k for k in range(len(scores)) if levels[k] <= depth)


@dataclass(frozen=True)
class Crossed(Cut):
    """Each of two requests verifies as many nodes as the other's reach `bound`."""

    bound: Fraction

    def keep(self, batch: Batch, state: State) -> tuple[Kept, ...]:
        one, other = batch
        if not one or not other:
            return first(len(one), one), first(len(other), other)
        width, other_width = _reaching(self.bound, other), _reaching(self.bound, one)
        return first(width, one), first(other_width, other)


@dataclass(frozen=True)
class OneWay(Cut):
    """The first request verifies all; the second as many as the first's reach."""

    bound: Fraction

    def keep(self, batch: Batch, state: State) -> tuple[Kept, ...]:
        one, other = batch
        return first(len(one), one), first(_reaching(self.bound, one), other)


@dataclass(frozen=True)
class LaggedBudget(Cut):
    """Nodes for the whole batch, as many as reached `bound` in the step before.

    They are dealt out in drafting order, first to the first request.
    """

    bound: Fraction

    @property
    def start(self) -> State:
        return (Fraction(1),)

    def keep(self, batch: Batch, state: State) -> tuple[Kept, ...]:
        left = int(state[0])
        kept: list[Kept] = []
        for scores in batch:
            kept.append(first(left, scores))
            left -= len(kept[-1])
        return tuple(kept)

    def after(self, state: State, spent: Spent) -> State:
        return (Fraction(sum(_reaching(self.bound, s) for s in spent.scores)),)


@dataclass(frozen=True)
class PooledRatio(Cut):
    """One global argmax of expected tokens over cost, on the scores of all."""

    costs: Costs

    def keep(self, batch: Batch, state: State) -> tuple[Kept, ...]:
        nodes = sorted(
            (-score, node, request)
            for request, scores in enumerate(batch)
            for node, score in enumerate(scores)
        )
        certain = sum(1 for scores in batch if scores)
        tokens = [certain - 1 + gain for gain in gains(-node[0] for node in nodes)]
        pairs = zip(tokens, self.costs, strict=False)
        kept = nodes[: argmax([gain / cost for gain, cost in pairs])]
        return tuple(
            frozenset(node for _, node, owner in kept if owner == request)
            for request in range(len(batch))
        )


@dataclass(frozen=True)
class StopByDepth(Cut):
    """Chains: all grow until the scores at a depth sum to less than `price`."""

    price: Fraction

    def keep(self, batch: Batch, state: State) -> tuple[Kept, ...]:
        depth = 0
        for level in zip(*(scores for scores in batch if scores), strict=True):
            if sum(level) < self.price:
                break
            depth += 1
        return tuple(first(depth, scores) for scores in batch)


def _reaching(bound: Fraction, scores: Scores) -> int:
    return sum(score >= bound for score in scores)
