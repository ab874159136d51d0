"""Cuts that the four words of a `Combination` do not describe.

Some take other orders than a rule of the package, some look at a whole batch.
"""

from dataclasses import dataclass
from fractions import Fraction

from evict_profile.lossless.cuts import (
    Costs,
    Cut,
    DepthAtBound,
    FixedWidth,
    Kept,
    Lagged,
    Levels,
    OnlineRate,
    Ratio,
    StopAtRate,
    argmax,
    down_to,
    first,
    gains,
    reaching,
)


@dataclass(frozen=True)
class Best(FixedWidth):
    """The `width` nodes of the highest scores."""

    by_score = True


@dataclass(frozen=True)
class StopByScore(StopAtRate):
    """`StopAtRate` with nodes taken by score."""

    by_score = True


@dataclass(frozen=True)
class Throughput(OnlineRate):
    """The width of the highest throughput, past and present.

    Scores count as often as past ones came true: what `runtime.history` learns.
    """

    @property
    def start(self):
        return (Fraction(0),) * 4

    def choose(self, scores, state):
        tokens, time, accepted, claimed = state
        trust = (1 + accepted) / (1 + claimed)
        pairs = zip(gains(trust * score for score in scores), self.costs, strict=False)
        return argmax([(tokens + gain) / (time + cost) for gain, cost in pairs])

    def after(self, state, spent):
        claimed = [
            scores[k]
            for scores, kept in zip(spent.scores, spent.kept, strict=True)
            for k in kept
        ]
        step = (
            Fraction(spent.emitted),
            self.costs[len(claimed)],
            Fraction(spent.emitted - 1),
            sum(claimed, start=Fraction(0)),
        )
        return tuple(past + new for past, new in zip(state, step, strict=True))


@dataclass(frozen=True)
class DepthThenRatio(DepthAtBound):
    """A depth, and of the nodes down to there those of the highest ratio."""

    costs: Costs

    def keep(self, batch, state):
        kept = []
        for drafted, scores in zip(super().keep(batch, state), batch, strict=True):
            nodes = sorted(drafted)
            own = tuple(scores[k] for k in nodes)
            chosen = Ratio(self.costs).keep_one(own, state)
            kept.append(frozenset(nodes[k] for k in chosen))
        return tuple(kept)


@dataclass(frozen=True)
class DroppedLevel(Cut):
    """All levels, less the last where a request's scores there sum to less."""

    levels: Levels
    bound: Fraction

    def keep(self, batch, state):
        last, kept = max(self.levels), []
        for scores in batch:
            pairs = zip(scores, self.levels, strict=False)
            worth = sum(score for score, level in pairs if level == last)
            depth = last if worth >= self.bound else last - 1
            kept.append(down_to(depth, self.levels, scores))
        return tuple(kept)


@dataclass(frozen=True)
class Crossed(Cut):
    """Each of two requests verifies as many nodes as the other's reach `bound`."""

    bound: Fraction

    def keep(self, batch, state):
        one, other = batch
        if not one or not other:
            return first(len(one), one), first(len(other), other)
        width, other_width = reaching(self.bound, other), reaching(self.bound, one)
        return first(width, one), first(other_width, other)


@dataclass(frozen=True)
class OneWay(Cut):
    """The first request verifies all; the second as many as the first's reach."""

    bound: Fraction

    def keep(self, batch, state):
        one, other = batch
        return first(len(one), one), first(reaching(self.bound, one), other)


@dataclass(frozen=True)
class LaggedTotal(Lagged):
    """Nodes for the whole batch, as many as reached `bound` in the step before.

    They are dealt out in drafting order, first to the first request.
    """

    def keep(self, batch, state):
        left = int(state[0])
        kept: list[Kept] = []
        for scores in batch:
            kept.append(first(left, scores))
            left -= len(kept[-1])
        return tuple(kept)


@dataclass(frozen=True)
class PooledRatio(Cut):
    """One global argmax of expected tokens over cost, on the scores of all."""

    costs: Costs

    def keep(self, batch, state):
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
    """Chains: all grow until the scores at a depth sum to less than `rate`."""

    rate: Fraction

    def keep(self, batch, state):
        depth = 0
        for level in zip(*(scores for scores in batch if scores), strict=True):
            if sum(level) < self.rate:
                break
            depth += 1
        return tuple(first(depth, scores) for scores in batch)
