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

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evict_profile.errors import PlanError
from evict_profile.runtime.calibration import Scoring
from evict_profile.stats import Floats

NOTHING = -np.inf
"""The worth of a place where no node stands: it comes after all nodes."""

ROOM = 128
"""Nodes of a tree that are laid out at first; larger trees are given more."""


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
        self._scoring = scoring
        self._batch, self._rows = batch, np.arange(batch)[:, None]
        # Twice: as they are, and with the level that may follow.
        self._worth = np.empty((2, batch, ROOM))
        self._worth.fill(NOTHING)
        # Of the last level; the root's before the first.
        self._reached = np.ones((batch, 1))

    def grow(self, prob: ArrayLike, parent: ArrayLike | None) -> None:
        """Add a level; see `DecodingStep.extend`.

        Raises:
            PlanError: another shape or kind of numbers, or no parents of this level.
        """
        chance = self._scoring.chances(prob, self._batch)
        batch, families, children = chance.shape
        above = self._above(parent, (batch, families))
        self.levels += 1
        self._fresh = families * children
        reached = (above[:, :, None] * chance).reshape(batch, self._fresh)
        self._reached = reached
        begin, self.nodes = self.nodes, self.nodes + self._fresh
        self._make_room(self.nodes)
        self._worth[:, :, begin : self.nodes] = self._scoring.worth(
            reached, self.levels
        )

    @property
    def worth(self) -> Floats:
        """Acceptance of each node, float64 [B, nodes]; NaN for what is none."""
        worth: Floats = self._worth[0, :, : self.nodes]
        return worth

    @property
    def last_level(self) -> Floats:
        """`worth` of the last level alone."""
        level: Floats = self._worth[0, :, self.nodes - self._fresh : self.nodes]
        return level

    def with_children(self, shares: Floats) -> Floats:
        """Worth without and with the level that may follow, float64 [2, B, places].

        Its nodes are not known yet. The best of the last level, as many as their
        children that were measured, are expected to have children that are worth their
        parent's acceptance times these shares. Without them their places are empty.

        Args:
            shares: acceptance of a child by rank where its parent is accepted.
        """
        ranks = len(shares)
        parents = self.last_level.copy()
        parents.sort()
        families = min(ranks, self._fresh)
        end = self.nodes + families * ranks
        self._make_room(end)
        places = self._worth[1, :, self.nodes : end]
        children = places.reshape(self._batch, families, ranks)
        np.multiply(parents[:, -families:, None], shares, out=children)
        shown: Floats = self._worth[:, :, :end]
        return shown

    def _above(self, parent: ArrayLike | None, families: tuple[int, int]) -> Floats:
        """What is reached by the parent of each family, [B, P]."""
        if parent is None and not self.levels and families[1] == 1:
            return self._reached
        places = np.asarray(parent)
        if not self.levels or not self._are_places(places, families):
            raise PlanError(
                f"parent is {places.dtype} {list(places.shape)} for {list(families)} "
                "families; give the place of each family's parent in the level before, "
                "and None at the first level, whose one family is the root's"
            )
        if self._batch > 1:
            places = places + self._rows * self._reached.shape[1]
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
        held = self._worth.shape[2]
        if nodes > held:
            more = np.full((2, self._batch, 2 * nodes - held), NOTHING)
            self._worth = np.concatenate((self._worth, more), axis=2)
