"""Cuts that decide how deep is drafted, level by level, and what may follow them.

Whether a level is drafted is decided from the scores of the levels before it, and all
requests of a batch draft equally deep. A level that is not drafted stands for nothing:
its scores are never read. What then cuts the tree that was drafted reads all of it.
"""

from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction

from evict_profile.lossless.accept import Kept
from evict_profile.lossless.cuts import Batch, Costs, Cut, LoneCut, Ratio, State
from evict_profile.lossless.drafts import Scores

Levels = tuple[int, ...]


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
