"""SGLang's draft tree, as its drafter hands it over, and how it is cut.

A node is a flat index into all that was drafted: `topk` nodes on the first level, then
`topk` x `topk` a level, so that a parent has the smaller index. `parent_list` says, for
each group of `topk` siblings, which flat index they hang on.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]


class HostTrees(Struct, frozen=True):
    """What a width is decided by, copied to the host; see `Drafted` for each part.

    In numpy: an operation of torch on so few nodes takes 2 to 10 us, of numpy one.
    """

    path_prob: NDArray[Any]
    index: Ints
    parent_list: Ints
    topk: int

    def depth(self) -> Ints:
        """int64 [B, M], level of each node, 1 under the root."""
        return (self.index - self.topk) // self.topk**2 + 2

    def parent(self) -> Ints:
        """int64 [B, M]; see `Drafted.parent`, of which these are the numbers."""
        (batch, nodes), groups = self.index.shape, self.parent_list.shape[1]
        if not groups:
            return np.full_like(self.index, -1)
        request, own = np.arange(batch)[:, None], np.arange(nodes)
        # By flat index, the place of each chosen node; behind them, as -1, the root.
        place = np.full((batch, groups * self.topk + 1), nodes)
        place[request, self.index] = own
        place[:, -1] = -1
        above = self.parent_list[request, self.index // self.topk]
        found = place[request, above]
        return np.where(found < nodes, found, own)


@dataclass(frozen=True)
class Drafted:
    """Draft trees of a batch, roots excluded.

    Attributes:
        parent_list: int64 [B, G], flat index of the parent of each sibling group.
        index: int64 [B, M], flat indices of the nodes, increasing.
        tokens: int64 [B, M], what was drafted there.
        path_prob: float32 [B, M], product of the drafter's probabilities from the root.
        topk: children that each expanded node has.
    """

    parent_list: Tensor
    index: Tensor
    tokens: Tensor
    path_prob: Tensor
    topk: int

    @property
    def width(self) -> int:
        """Tokens that one request verifies with this tree, its root included."""
        return self.index.shape[1] + 1

    def each(self, change: Callable[[Tensor], Tensor]) -> "Drafted":
        """The batch with all its tensors changed alike."""
        return Drafted(
            change(self.parent_list),
            change(self.index),
            change(self.tokens),
            change(self.path_prob),
            self.topk,
        )

    def kept(self, keep: NDArray[np.bool_]) -> "Drafted":
        """The nodes that a decision on the host keeps, bool [B, M], of each request
        as many: one copy to the device, where ranking again takes fifty operations."""
        places = torch.from_numpy(keep.nonzero()[1].reshape(len(keep), -1))
        return self.at(places.to(self.index.device, non_blocking=True))

    def at(self, places: Tensor) -> "Drafted":
        """The nodes in these places, int64 [B, m], increasing."""
        return replace(
            self,
            index=self.index.gather(1, places),
            tokens=self.tokens.gather(1, places),
            path_prob=self.path_prob.gather(1, places),
        )

    @cached_property
    def parent(self) -> Tensor:
        """int64 [B, M], place of each node's parent in its row, -1 under the root.

        A node whose parent was not chosen has its own place: nothing reaches it. SGLang
        chooses such a node, and ignores it, where it ties its parent.
        """
        group = self.index // self.topk
        if not self.parent_list.shape[1]:
            return torch.full_like(self.index, -1)
        above = self.parent_list.gather(1, group).contiguous()
        own = torch.arange(self.index.shape[1], device=self.index.device)
        place = torch.searchsorted(self.index, above).clamp(max=len(own) - 1)
        chosen = self.index.gather(1, place) == above
        return torch.where(group == 0, -1, torch.where(chosen, place, own))


def cut(drafted: Drafted, width: int, worth: Tensor | None = None) -> Drafted:
    """The best nodes of each tree, so that each request verifies `width` tokens.

    The best by `worth` [B, M], of equals the more probable; without it by probability.

    The sort is stable, since a child whose probability is 1.0 ties its parent: in order
    of flat indices the parent then comes first, which `torch.topk` does not promise. So
    what is kept is closed under ancestors, if the tree was.

    Returns:
        The trees, in order of flat indices again, as SGLang's tree kernel wants them.
    """
    if not 2 <= width <= drafted.width:
        raise ValueError(f"width {width} is not within 2..{drafted.width}")
    best = torch.sort(drafted.path_prob, dim=1, descending=True, stable=True).indices
    if worth is not None:
        ranked = torch.sort(worth.gather(1, best), dim=1, descending=True, stable=True)
        best = best.gather(1, ranked.indices)
    return drafted.at(torch.sort(best[:, : width - 1], dim=1).values)
