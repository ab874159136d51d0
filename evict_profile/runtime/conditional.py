"""Conditional acceptance: one factor, given the parent, for each node of a path.

A curve over the whole path's product cannot tell a sure child of a doubtful parent from
a doubtful child of a sure one. A drafter's probability of a node *given its parent*
says more, and most by rank: its best guess is right in another share than its third, at
the same probability. So each rank has a curve, and a node is worth the
product of their values along its path.

A factor is 1 at most, and in floating point such a product never rises either, as long
as it is taken from the root downwards. So no child is worth more than its parent,
whatever the curves, and the best nodes are closed under ancestors.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evict_profile.errors import PlanError
from evict_profile.runtime.decision import LARGEST_PROBABILITY
from evict_profile.stats import Floats
from evict_profile.table import ConditionalAcceptance

Ints = NDArray[Any]
Row = tuple[float, ...]

KEPT = 256
"""Shapes of levels for which constants are laid out and kept."""

TINY = 1e-300
"""A parent of probability 0 has children of 0, and 0 / TINY is that."""

APART = 1024.0
"""From the curve of one rank to the next. Between them lie NaN, so that a number that
is no probability is found where it is read, without a pass of its own."""


class ConditionalScorer:
    """Curves of conditional acceptance at work."""

    def __init__(self, curves: ConditionalAcceptance) -> None:
        """Lay the curves of all ranks end to end, once."""
        self._last = len(curves.acceptances) - 1
        y = np.array(curves.acceptances, float)
        x = np.array([-APART / 2.0, *curves.scores, LARGEST_PROBABILITY])
        knots = (APART * np.arange(len(y) + 1)[:, None] + x).ravel()[: 1 - len(x)]
        none = np.full((len(y), 1), np.nan)
        chances = np.append(np.hstack((none, y, y[:, -1:])), np.nan)
        slopes = np.append(np.diff(chances) / np.diff(knots), 0.0)
        self._line = _Line(knots, chances, slopes)
        # Elsewhere no rounding lifts a chance above 1.
        self._sure = bool(y.max() > 1.0 - 1e-9)
        self._begins = lru_cache(KEPT)(self._begins_of)

    def children(self, prob: NDArray[Any]) -> Floats:
        """Chance of each child where its parent is accepted, float64 [B, P * K].

        Args:
            prob: floats [B, P, K], given the parent; siblings by falling probability.

        Returns:
            NaN where `prob` is none.
        """
        # Of one kind and shape: an operation on two of them costs three times as much.
        begins = self._begins(prob.shape)
        places = prob.astype(np.float64, copy=False).reshape(begins.shape)
        return self._read(places + begins)

    def on_cpu(self, path_prob: NDArray[Any], parent: Ints | None) -> Floats:
        """Acceptance of each node, float64 [B, N].

        Args:
            path_prob: floats [B, N].
            parent: whole numbers [B, N], each node's parent in its row, -1 for the
                root. A node that no path from the root reaches is worth 0.

        Raises:
            PlanError: a node that is no padding has a parent outside its row.
        """
        assert parent is not None, "conditional acceptance is followed by parents"
        _require_in_row(path_prob, parent)
        batch, nodes = path_prob.shape
        # The root stands behind the nodes of its row.
        above = np.where(parent < 0, nodes, np.minimum(parent, nodes - 1))
        above += (nodes + 1) * np.arange(batch)[:, None]
        known = np.ones((batch, nodes + 1))
        known[:, :nodes] = path_prob
        share = known[:, :nodes] / np.maximum(known.take(above), TINY)
        curve = APART * np.minimum(_ranks(path_prob, above), self._last)
        factor = self._read(curve + np.minimum(share, 1.0))
        worth = np.zeros((batch, nodes + 1))
        worth[:, nodes] = 1.0
        own = worth[:, :nodes]
        # Each pass is right one level further, and the last changes nothing.
        while True:
            further: Floats = factor * worth.take(above)
            if np.logical_and.reduce(further == own, axis=None):
                return further
            own[...] = further

    def on_device(
        self, device: torch.device, levels: int
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """The same in tensor operations of fixed shapes, for trees of so many levels.

        Deeper nodes are worth 0, and a parent outside its row is taken for its last
        node: neither can be refused without a sync.
        """
        knots, chances, slopes = (
            torch.from_numpy(each).to(device) for each in self._line
        )

        def worth_of(path_prob: Tensor, parent: Tensor) -> Tensor:
            nodes = path_prob.shape[1]
            above = torch.where(parent < 0, nodes, parent.clamp(max=nodes - 1)).long()
            own = path_prob.double()
            share = own / _with_root(own).gather(1, above).clamp(min=TINY)
            rank = _ranks_on_device(path_prob, above)
            curve = APART * rank.clamp(max=self._last).double()
            place = curve + share.clamp(max=1.0)
            part = torch.searchsorted(knots, place.contiguous(), right=True) - 1
            risen = slopes[part] * (place - knots[part])
            factor = (chances[part] + risen).clamp(max=1.0)
            worth = torch.zeros_like(own)
            for _ in range(levels):
                worth = factor * _with_root(worth).gather(1, above)
            return worth

        return worth_of

    def _read(self, place: Floats) -> Floats:
        line = self._line
        chance = np.interp(place, line.knots, line.chances)
        return np.minimum(chance, 1.0, out=chance) if self._sure else chance

    def _begins_of(self, shape: tuple[int, int, int]) -> Floats:
        """Where the curve of each child begins, float64 [B, P * K]."""
        batch, families, siblings = shape
        begins: Floats = APART * np.minimum(np.arange(siblings), self._last)
        return np.tile(begins, (batch, families))


class _Line(NamedTuple):
    """The curves of all ranks as one: that of rank r lies from r APART to r APART + 1.

    Places, acceptance there, and how fast it rises to the next; each [ranks * scores].
    """

    knots: Floats
    chances: Floats
    slopes: Floats


def _require_in_row(path_prob: NDArray[Any], parent: Ints) -> None:
    nodes = path_prob.shape[1]
    if not nodes or (parent.min() >= -1 and parent.max() < nodes):
        return
    if np.any(((parent < -1) | (parent >= nodes)) & (path_prob > 0.0)):
        raise PlanError(
            f"parent holds a node outside 0..{nodes - 1}; give the index of each "
            "node's parent in its row, and -1 under the root"
        )


def _ranks(path_prob: NDArray[Any], above: Ints) -> Ints:
    """The place of each node among its siblings, the most probable first, [B, N]."""
    family = above.ravel()
    order = np.lexsort((-path_prob.ravel(), family))
    sorted_family, place = family[order], np.arange(len(order))
    first = np.zeros_like(place)
    first[1:] = np.where(sorted_family[1:] != sorted_family[:-1], place[1:], 0)
    ranks = np.empty_like(place)
    ranks[order] = place - np.maximum.accumulate(first)
    return ranks.reshape(above.shape)


def _ranks_on_device(path_prob: Tensor, above: Tensor) -> Tensor:
    best = torch.argsort(path_prob, dim=1, descending=True, stable=True)
    family, again = torch.sort(above.gather(1, best), dim=1, stable=True)
    order = best.gather(1, again)
    place = torch.arange(order.shape[1], device=order.device).expand_as(order)
    begins = torch.ones_like(family, dtype=torch.bool)
    begins[:, 1:] = family[:, 1:] != family[:, :-1]
    first = torch.where(begins, place, 0).cummax(dim=1).values
    return torch.empty_like(order).scatter_(1, order, place - first)


def _with_root(values: Tensor) -> Tensor:
    """The root's 1 behind each row: [B, N + 1]."""
    return torch.nn.functional.pad(values, (0, 1), value=1.0)
