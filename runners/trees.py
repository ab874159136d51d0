"""Random trees, and forced routing: exactly U distinct experts, drawn by a seed.

Trees and which experts run are nuisance factors: real at a fixed cell, and in no
published table. So both are drawn anew for each sample.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from runners.protocol import Message, Refusal


def force_union(tokens: int, top_k: int, experts: int, union: int, seed: int) -> Tensor:
    """Routes of one layer that activate exactly `union` of `experts`: int64 [tokens,
    top_k], distinct within a row, on the CPU."""
    if not top_k <= union <= min(experts, tokens * top_k):
        raise Refusal(
            "infeasible",
            f"{tokens} tokens x top-{top_k} of {experts} experts cannot activate "
            f"{union}",
        )
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(experts, generator=generator)[:union]
    slots = torch.arange(tokens * top_k).view(tokens, top_k) % union
    order = torch.randperm(tokens, generator=generator)
    return chosen[slots[order]]


def force_unions(
    cell: Message, layers: int, top_k: int, experts: int, seed: int
) -> Tensor:
    """Routes [layers, width * batch, top_k] of a forced cell, in each layer others."""
    tokens = cell["width"] * cell["batch"]
    drawn = (
        force_union(tokens, top_k, experts, cell["union"], seed + layer)
        for layer in range(layers)
    )
    return torch.stack(list(drawn))


def unions(routes: Iterable[Tensor | np.ndarray]) -> list[int]:
    """Distinct experts in each layer of routes, [tokens, top_k] each."""
    return [len(set(layer.flatten().tolist())) for layer in routes]


def row_counts(routes: Tensor, experts: int) -> set[int]:
    """Every number of rows that one expert got: the sizes of its products."""
    counts = [layer.flatten().bincount(minlength=experts) for layer in routes]
    return set(torch.stack(counts).unique().tolist())


def random_parents(batch: int, width: int, seed: int) -> Tensor:
    """Trees in which each node hangs on any of those before it: int64 [batch, width -
    1], the parent of node i + 1; 0 is the root."""
    generator = torch.Generator().manual_seed(seed)
    chance = torch.rand(batch, width - 1, generator=generator, dtype=torch.float64)
    return (chance * torch.arange(1, width)).long()


def tree_mask(parents: Sequence[int]) -> Tensor:
    """Attention mask of a tree, bool [1 + M, 1 + M]: a node sees its ancestors and
    itself."""
    mask = torch.eye(len(parents) + 1, dtype=torch.bool)
    for node, parent in enumerate(parents, start=1):
        mask[node] |= mask[parent]
    return mask
