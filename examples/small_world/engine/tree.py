"""EAGLE-2's dynamic draft tree (Li et al., arXiv 2406.16858, sections 4.1 and 4.2).

Each level expands the `topk` nodes of highest path probability into their `topk` most
probable tokens. All that was drafted then competes by path probability, and the best
`nodes` are verified: a child never scores above its parent, so the best are closed
under ancestors.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evict_profile.stats import Bools, Ints

Floats32 = NDArray[np.float32]


@dataclass(frozen=True)
class TreeShape:
    """How trees are drafted: levels, nodes expanded a level, nodes kept."""

    depth: int = 5
    topk: int = 8
    nodes: int = 60


@dataclass(frozen=True)
class Trees:
    """Nodes of one tree a request, [B, M] each, roots left out.

    A parent stands before its children; `parent` is its index, -1 for the root.
    """

    token: Ints
    parent: Ints
    depth: Ints
    path_prob: Floats32

    @classmethod
    def empty(cls, batch: int) -> "Trees":
        """Trees that are roots alone."""
        ints = np.empty((batch, 0), dtype=np.int64)
        return cls(ints, ints, ints, ints.astype(np.float32))

    def grow(self, parent: Ints, token: Ints, path_prob: Floats32) -> "Trees":
        """One level more, each [B, fresh]."""
        level = self.depth[0, -1] + 1 if self.depth.size else 1
        return Trees(
            token=np.concatenate((self.token, token), axis=1),
            parent=np.concatenate((self.parent, parent), axis=1),
            depth=np.concatenate((self.depth, np.full_like(token, level)), axis=1),
            path_prob=np.concatenate((self.path_prob, path_prob), axis=1),
        )

    def of(self, request: int) -> "Trees":
        """One request's tree, as a batch of one."""
        row = slice(request, request + 1)
        return Trees(
            self.token[row], self.parent[row], self.depth[row], self.path_prob[row]
        )

    def beyond_best(self, nodes: int, fresh: int) -> Bools:
        """Which of the last so many are not among the `nodes` of highest path
        probability, bool [B, fresh]."""
        batch, drafted = self.token.shape
        beyond = np.zeros((batch, drafted), dtype=np.bool_)
        if drafted > nodes:
            beyond[np.arange(batch)[:, None], best_first(self.path_prob)[:, nodes:]] = 1
        return beyond[:, drafted - fresh :]

    def any_best(self, nodes: int) -> "Trees":
        """Of one request: the `nodes` best, had drafting ended at any level."""
        assert len(self.token) == 1
        kept: set[int] = set()
        for level in range(1, int(self.depth.max(initial=0)) + 1):
            reached = np.flatnonzero(self.depth[0] <= level)
            ranked = best_first(self.path_prob[:, reached])[0, :nodes]
            kept.update(reached[ranked].tolist())
        return self.take(np.array([sorted(kept)], dtype=np.int64))

    def take(self, index: Ints) -> "Trees":
        """The nodes at these increasing indices [B, kept], closed under ancestors."""
        # Plain indexing: numpy's take_along_axis costs ten times as much on a tree.
        own = (np.arange(len(index))[:, None], index)
        renumbered = np.full((len(index), self.token.shape[1] + 1), -1)
        renumbered[own] = np.arange(index.shape[1])
        # The root's index, -1, reads the last column, which stays -1.
        parent = renumbered[own[0], self.parent[own]]
        return Trees(self.token[own], parent, self.depth[own], self.path_prob[own])


def best_first(path_prob: Floats32) -> Ints:
    """Indices by falling path probability, [B, M]; stable, so parents win ties."""
    order: Ints = np.argsort(-path_prob, axis=1, kind="stable")
    return order


def ancestors(parent: Ints) -> Bools:
    """What each token of a tree sees, bool [1 + M, 1 + M]; the root is token 0."""
    count = len(parent) + 1
    seen = np.eye(count, dtype=np.bool_)
    seen[:, 0] = True
    for node, above in enumerate(parent.tolist(), start=1):
        seen[node] |= seen[above + 1]
    return seen
