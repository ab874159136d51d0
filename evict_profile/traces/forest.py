"""Many trees end to end in flat arrays, so that a large trace is read in seconds.

A node names its parent by its place in the flat arrays; -1 is the root of its tree,
which has no place of its own. Parents stand before their children.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evict_profile.stats import Floats, Ints, rank_within


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees end to end.

    Attributes:
        tree: int64 [nodes], the tree of each node, non-decreasing.
        parent: int64 [nodes], place of the parent, below the node's own; -1 the root.
        path_prob: float64 [nodes].
    """

    tree: Ints
    parent: Ints
    path_prob: Floats

    @cached_property
    def depth(self) -> Ints:
        """Steps from the root, int64 [nodes], 1 and up."""
        depth, above = np.ones(len(self.parent), np.int64), self.parent
        while (inner := above >= 0).any():
            depth += inner
            above = np.where(inner, self.parent[above], -1)
        return depth

    @cached_property
    def family(self) -> Ints:
        """A number that siblings share and nobody else has, int64 [nodes]."""
        return np.where(self.parent >= 0, self.parent, -1 - self.tree)

    @cached_property
    def rank(self) -> Ints:
        """Place among the siblings by path probability, int64 [nodes], 0 the best."""
        return rank_within(self.family, self.path_prob)

    @cached_property
    def falling(self) -> Floats:
        """Path probabilities with each rise above the parent cut off, float64 [nodes].

        So the best nodes are closed under ancestors whatever rounding did.
        """
        lowered = np.minimum(self.path_prob, 1.0)
        for level in range(2, int(self.depth.max(initial=1)) + 1):
            here = np.flatnonzero(self.depth == level)
            lowered[here] = np.minimum(lowered[here], lowered[self.parent[here]])
        return lowered
