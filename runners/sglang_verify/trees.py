"""Random draft trees, said as SGLang's drafter says them.

SGLang's kernel builds mask, positions and links from two lists: a flat index for each
node, whose quotient by `topk` names its sibling group, and the flat index on which each
group hangs. With `topk` as large as the tree, any tree can be said: node i under parent
p is p * n + i, and group p hangs on p.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Trees:
    """Trees of a batch, each with `width` nodes, the root included.

    Attributes:
        parents: int64 [B, n - 1], parent of node i + 1; 0 is the root.
    """

    parents: Tensor

    @property
    def width(self) -> int:
        """Nodes of a tree, its root included."""
        return self.parents.shape[1] + 1

    @property
    def levels(self) -> int:
        """The `num_steps` to tell: no path is longer, and every group has room."""
        return max(2, self.width - 1)

    @property
    def index(self) -> Tensor:
        """int64 [B, n - 1], the flat index of each node."""
        nodes = torch.arange(1, self.width, device=self.parents.device)
        return self.parents * self.width + nodes

    @property
    def parent_list(self) -> Tensor:
        """int64 [B, n * (levels - 1) + 1], the flat index each group hangs on."""
        batch, n = len(self.parents), self.width
        groups = self.parents.new_full((batch, n * (self.levels - 1) + 1), -1)
        groups[:, 1:n] = self.index
        return groups


def random_trees(batch: int, width: int, seed: int, device: torch.device) -> Trees:
    """Trees in which each node hangs on any of those before it."""
    generator = torch.Generator().manual_seed(seed)
    chance = torch.rand(batch, width - 1, generator=generator, dtype=torch.float64)
    parents = (chance * torch.arange(1, width)).long()
    return Trees(parents.to(device))


def chains(batch: int, width: int, device: torch.device) -> Trees:
    """Trees in which each node hangs on the one before it, as real text would."""
    return Trees(torch.arange(width - 1, device=device).repeat(batch, 1))
