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
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evict_profile.errors import PlanError
from evict_profile.runtime import scan
from evict_profile.runtime.decision_cpu import require_probabilities
from evict_profile.runtime.scan_numpy import TINY
from evict_profile.stats import Floats
from evict_profile.table import ConditionalAcceptance

Ints = NDArray[Any]


class ConditionalScorer:
    """Curves of conditional acceptance at work.

    Attributes:
        curves: float64 [1 + 2 ranks, scores]: the scores, then acceptance there by
            rank, the last of which serves all beyond it, then how fast it rises from
            each score to the next.
    """

    def __init__(self, measured: ConditionalAcceptance) -> None:
        """Lay out the curves, once."""
        x, y = np.array(measured.scores), np.array(measured.acceptances)
        slopes = np.diff(y) / np.diff(x)
        self.curves: Floats = np.vstack((x, y, np.pad(slopes, ((0, 0), (0, 1)))))

    def on_cpu(self, path_prob: NDArray[Any], parent: Ints) -> Floats:
        """Acceptance of each node, float64 [B, N].

        Args:
            path_prob: floats of 32 or 64 bits [B, N].
            parent: whole numbers [B, N], each node's parent in its row, -1 for the
                root. A node that no path from the root reaches is worth 0.

        Raises:
            PlanError: a probability is NaN or outside [0, 1], or a node that is no
                padding has a parent outside its row.
        """
        require_probabilities(path_prob)
        worth = np.empty(path_prob.shape)
        shown, above = map(np.ascontiguousarray, (path_prob, parent.astype(np.int64)))
        if not scan.loops.follow(shown, above, self.curves, worth):
            raise PlanError(
                f"parent holds a node outside 0..{parent.shape[1] - 1}; give the index "
                "of each node's parent in its row, and -1 under the root"
            )
        return worth

    def on_device(
        self, device: torch.device, levels: int
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """The same in tensor operations of fixed shapes, for trees of so many levels.

        Deeper nodes are worth 0, and a parent outside its row is taken for its last
        node: neither can be refused without a sync.
        """
        curves = torch.from_numpy(self.curves).to(device)
        knots, ranks = curves[0], len(curves) // 2

        def worth_of(path_prob: Tensor, parent: Tensor) -> Tensor:
            nodes = path_prob.shape[1]
            above = torch.where(parent < 0, nodes, parent.clamp(max=nodes - 1)).long()
            own = path_prob.double()
            share = own / _with_root(own).gather(1, above).clamp(min=TINY)
            share = share.clamp(max=1.0).contiguous()
            row = 1 + _ranks_on_device(path_prob, above).clamp(max=ranks - 1)
            part = torch.searchsorted(knots, share, right=True) - 1
            rise = curves[ranks + row, part] * (share - knots[part])
            factor = (curves[row, part] + rise).clamp(max=1.0)
            worth = torch.zeros_like(own)
            for _ in range(levels):
                worth = factor * _with_root(worth).gather(1, above)
            return worth

        return worth_of


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
