"""SGLang's draft tree, as its drafter returns it, and its truncation.

A node is a flat index into all drafted nodes: `topk` on the first level, then `topk` x
`topk` a level, so parents have smaller ones. `parent_list` has the flat index of each
sibling group's parent, -1 for the root.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]


def parents(index: Any, parent_list: Any, topk: int, library: Any) -> Any:
    """int64 [B, M], place of each node's parent in its row, -1 under the root.

    A node whose parent was not chosen (SGLang ignores it, on ties) is its own parent.
    `library` is torch, or numpy on the host, which takes 1 us an operation, not 2 to
    10.
    """
    (batch, nodes), groups = index.shape, parent_list.shape[1]
    if not groups:
        return library.full_like(index, -1)
    row = library.arange(batch, device=index.device)[:, None]
    own = library.arange(nodes, device=index.device)
    # By flat index, the place of each chosen node; before them the root, -1.
    place = library.full((batch, 1 + groups * topk), nodes, device=index.device)
    place[:, 0] = -1
    begin = 1 + row * place.shape[1]
    place.reshape(-1)[begin + index] = own
    found = place.take(begin + parent_list.take(row * groups + index // topk))
    return library.where(found < nodes, found, own)


def depths(index: Ints, topk: int) -> Ints:
    """int64 [B, M], level of each node, 1 under the root."""
    return (index - topk) // topk**2 + 2


@dataclass(frozen=True)
class Drafted:
    """Draft trees of a batch, roots excluded: `parent_list` int64 [B, G], the rest [B,
    M], in order of `index`. `path_prob` is the drafter's product from the root.
    """

    parent_list: Tensor
    index: Tensor
    tokens: Tensor
    path_prob: Tensor
    topk: int

    @property
    def width(self) -> int:
        return self.index.shape[1] + 1

    @cached_property
    def parent(self) -> Tensor:
        """int64 [B, M]; see `parents`."""
        found: Tensor = parents(self.index, self.parent_list, self.topk, torch)
        return found

    def each(self, change: Callable[[Tensor], Tensor]) -> "Drafted":
        return Drafted(
            change(self.parent_list),
            change(self.index),
            change(self.tokens),
            change(self.path_prob),
            self.topk,
        )

    def at(self, places: Tensor) -> "Drafted":
        """The nodes in these places, int64 [B, m], increasing."""
        places = places.to(self.index.device, non_blocking=True)
        return replace(
            self,
            index=self.index.gather(1, places),
            tokens=self.tokens.gather(1, places),
            path_prob=self.path_prob.gather(1, places),
        )


def best_nodes(drafted: Drafted, width: int, scores: Tensor | None = None) -> Tensor:
    """Places of the best nodes of each tree, by `scores` [B, M], then by path
    probability: int64 [B, width - 1].

    Each request verifies `width` tokens, its root included. Nodes stay in order of flat
    indices for SGLang's kernel. The sort is stable, which `torch.topk` is not: a child
    with probability 1.0 ties its parent, which comes first; so ancestors are kept.
    """
    if not 1 <= width <= drafted.width:
        raise ValueError(f"width {width} is not within 1..{drafted.width}")
    order = torch.sort(drafted.path_prob, dim=1, descending=True, stable=True).indices
    if scores is not None:
        ranked = scores.gather(1, order)
        by_score = torch.sort(ranked, dim=1, descending=True, stable=True).indices
        order = order.gather(1, by_score)
    return torch.sort(order[:, : width - 1], dim=1).values
