"""Cuts that look at several requests of one step.

What one request may verify can depend on another's scores. That the outputs taken
together keep their law is then more than that each of them does, and can fail alone.
A request that has all its tokens has left the batch: it drafts nothing.
"""

from dataclasses import dataclass
from fractions import Fraction

from evict_profile.lossless.accept import Kept
from evict_profile.lossless.cuts import (
    Batch,
    Costs,
    Cut,
    Spent,
    State,
    argmax,
    first,
    gains,
)
from evict_profile.lossless.drafts import Scores


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
