"""Draft trees as they grow: each node is scored once, when its level is drafted.

A drafter gives a level as the probabilities of children given their parents, the best
of siblings first. A node's worth is its parent's, times its own chance given the
parent (`runtime.conditional`; without it that chance is the probability itself). A
calibration of whole paths is read at that product. No child is worth more than its
parent in any of these, and a parent stands before its children: so the best k nodes,
of equals the first, are closed under ancestors.
"""

import numpy as np
from numpy.typing import ArrayLike

from evict_profile.errors import PlanError
from evict_profile.runtime import scan
from evict_profile.runtime.calibration import Scoring
from evict_profile.runtime.conditional import Ints
from evict_profile.runtime.decision_cpu import no_probability
from evict_profile.stats import Floats

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
        self.levels = self.nodes = self._last_level = 0
        self._scoring, self._batch = scoring, batch
        # Of each node the product of chances along its path, and last its worth.
        self._laid_out = [
            np.empty((batch, ROOM)) for _ in range(1 + scoring.reads_paths)
        ]

    def grow(self, prob: ArrayLike, parent: ArrayLike | None) -> None:
        """Add a level; see `DecodingStep.extend`.

        Raises:
            PlanError: another shape or kind of numbers, no parents of this level, or
                what is no probability.
        """
        shares = self._as_shares(prob)
        families, children = shares.shape[1:]
        is_root = not self.levels and parent is None and families == 1
        above = None if is_root else self._as_places(parent, families)
        begin, end = self.nodes, self.nodes + families * children
        if end > self._laid_out[0].shape[1]:
            self._laid_out = [_widened(each, end) for each in self._laid_out]
        trees, curves = self._laid_out[0], self._scoring.curves
        try:
            sound = scan.loops.reach(
                trees, self._last_level, begin, shares, above, curves
            )
        except IndexError as error:
            raise self._no_parents(np.asarray(above), families) from error
        if not sound:
            raise no_probability("prob")
        if self._scoring.reads_paths:
            worth = self._scoring.path_worth(trees[:, begin:end])
            self._laid_out[-1][:, begin:end] = worth
        self._last_level, self.nodes = begin, end
        self.levels += 1

    @property
    def worth(self) -> Floats:
        """Acceptance of each node, float64 [B, nodes]."""
        return self._laid_out[-1][:, : self.nodes]

    @property
    def last_level(self) -> Floats:
        """`worth` of the last level alone."""
        return self._laid_out[-1][:, self._last_level : self.nodes]

    def with_children(self, per_rank: Floats) -> Floats:
        """`worth` without and with the level that may follow, [2, B, places].

        Its nodes are not known yet. The best of the last level, as many as their
        children that were measured, are expected to have children that are worth their
        parent's acceptance times those shares, float64 [ranks].
        """
        parents = min(self.nodes - self._last_level, len(per_rank))
        places = self.nodes + parents * len(per_rank)
        expected = np.empty((2, self._batch, places))
        scan.loops.expect(
            self._laid_out[-1], self._last_level, self.nodes, per_rank, expected
        )
        return expected

    def _as_shares(self, prob: ArrayLike) -> Floats:
        """A level's probabilities as `scan` reads them."""
        try:
            found = np.asarray(prob)
        except (TypeError, ValueError, RuntimeError) as error:
            raise PlanError(f"prob cannot be read on the host: {error}") from error
        if found.ndim != 3 or len(found) != self._batch or found.dtype.kind != "f":
            raise PlanError(
                f"prob is {found.dtype} {list(found.shape)}; give floats "
                f"[{self._batch}, parents, children], each given its parent"
            )
        return np.ascontiguousarray(found, np.float64)

    def _as_places(self, parent: ArrayLike | None, families: int) -> Ints:
        """The places of families' parents as `scan` reads them."""
        found = np.asarray(parent)
        places = found.shape == (self._batch, families) and found.dtype.kind in "iu"
        if not (self.levels and places):
            raise self._no_parents(found, families)
        return np.ascontiguousarray(found, np.int64)

    def _no_parents(self, found: Ints, families: int) -> PlanError:
        return PlanError(
            f"parent is {found.dtype} {list(found.shape)} for "
            f"{[self._batch, families]} families; give the place of each family's "
            "parent in the level before, and None at the first level, whose one family "
            "is the root's"
        )


def _widened(trees: Floats, nodes: int) -> Floats:
    """The same with room for so many nodes, and as many again."""
    wider = np.empty((len(trees), 2 * nodes))
    wider[:, : trees.shape[1]] = trees
    return wider
