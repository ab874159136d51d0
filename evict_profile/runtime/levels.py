"""Draft trees as they grow: each node is scored once, when its level is drafted.

A drafter gives a level as the probabilities of children given their parents, the best
of siblings first. A node's worth is its parent's, times its own chance given the
parent (`runtime.conditional`; without it that chance is the probability itself), so a
level costs one interpolation and one product with what the level before is worth. A
calibration of whole paths is read at that product. No child is worth more than its
parent in any of these, and a parent stands before its children: so the best k nodes,
of equals the first, are closed under ancestors.

What is no probability becomes NaN, and is found when the level is compared: passes that
only check would cost as much as the scoring of a small tree.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evict_profile.errors import PlanError
from evict_profile.runtime.calibration import Scoring
from evict_profile.runtime.conditional import KEPT
from evict_profile.stats import Floats

NOTHING = -np.inf
"""The worth of a place where no node stands: it comes after all nodes."""

ROOM = 128
"""Nodes of a tree that are laid out at first; larger trees are given more."""

NO_ROOM = np.empty((2, 0, 0))


class GrowingTrees:
    """The trees of a batch, roots left out.

    Attributes:
        levels: drafted so far.
        nodes: of each request, padding among them; level by level, families in the
            order in which they came, siblings by rank.
    """

    def __init__(self, batch: int, scoring: Scoring) -> None:
        """Trees that are roots alone."""
        self.levels = self.nodes = self._fresh = 0
        self._scoring, self._batch = scoring, batch
        # Twice: as they are, and with the level that may follow.
        self._worth, self._room = NO_ROOM, 0
        # Of the last level.
        self._reached = NO_ROOM

    def grow(self, prob: ArrayLike, parent: ArrayLike | None) -> None:
        """Add a level; see `DecodingStep.extend`.

        Raises:
            PlanError: another shape or kind of numbers, or no parents of this level.
        """
        reached, families, children = self._scoring.chances(prob, self._batch)
        if self.levels or parent is not None or families > 1:
            above = self._above(parent, (self._batch, families))
            reached *= above.repeat(children).reshape(reached.shape)
        begin, self._fresh = self.nodes, families * children
        self.nodes = end = begin + self._fresh
        self.levels += 1
        self._reached = reached
        if end > self._room:
            self._make_room(end)
        self._worth[:, :, begin:end] = self._scoring.worth(reached, self.levels)

    @property
    def worth(self) -> Floats:
        """Acceptance of each node, float64 [B, nodes]; NaN for what is none."""
        if not self._room:
            return np.empty((self._batch, 0))
        worth: Floats = self._worth[0, :, : self.nodes]
        return worth

    @property
    def last_level(self) -> Floats:
        """`worth` of the last level alone."""
        level: Floats = self._worth[0, :, self.nodes - self._fresh : self.nodes]
        return level

    def with_children(self) -> Floats:
        """Worth without and with the level that may follow, float64 [2, B, places].

        Its nodes are not known yet. The best of the last level, as many as their
        children that were measured, are expected to have children that are worth their
        parent's acceptance times those shares. Without them their places are empty.
        """
        begin, fresh = self.nodes, self._fresh
        children, ranks = self._scoring.shares(self._batch, fresh)
        end = begin + children.shape[1]
        if end > self._room:
            self._make_room(end)
        shown: Floats = self._worth[:, :, :end]
        best = shown[0, :, begin - fresh : begin].copy()
        best.sort()
        parents = best[:, -ranks:].repeat(ranks, axis=1)
        np.multiply(parents, children, out=shown[1, :, begin:])
        return shown

    def _above(self, parent: ArrayLike | None, families: tuple[int, int]) -> Floats:
        """What is reached by the parent of each family, [B, P]."""
        places = np.asarray(parent)
        if not self.levels or not self._are_places(places, families):
            raise PlanError(
                f"parent is {places.dtype} {list(places.shape)} for {list(families)} "
                "families; give the place of each family's parent in the level before, "
                "and None at the first level, whose one family is the root's"
            )
        if self._batch > 1:
            places = places + _rows(self._batch, self._reached.shape[1])
        above: Floats = self._reached.take(places)
        return above

    def _are_places(self, places: NDArray[Any], families: tuple[int, int]) -> bool:
        if places.shape != families or places.dtype.kind not in "iu":
            return False
        if not places.size:
            return True
        # The index of the least costs a third of the least.
        least, most = places.item(places.argmin()), places.item(places.argmax())
        return bool(least >= 0 and most < self._reached.shape[1])

    def _make_room(self, nodes: int) -> None:
        held, room = self._room, max(ROOM, 2 * nodes)
        worth = np.empty((2, self._batch, room))
        worth[:, :, held:] = NOTHING
        if held:
            worth[:, :, :held] = self._worth
        self._worth, self._room = worth, room


@lru_cache(KEPT)
def _rows(batch: int, nodes: int) -> NDArray[np.int64]:
    """Where each request's nodes begin, int64 [B, 1]."""
    return nodes * np.arange(batch)[:, None]
