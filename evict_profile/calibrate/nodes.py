"""Every recorded draft node as one row: what it promised, where it stood, its fate.

Only trees that were verified whole are recorded, so a row's fate is known whatever a
policy would have done with it. A trace of truncated steps has no such rows: what a
policy cut is unknown, and its rows are those that it thought well of.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from evict_profile.stats import Bools, Floats, Ints, rank_within
from evict_profile.traces import Reply


@dataclass(frozen=True, eq=False)
class Nodes:
    """Rows of many trees, roots excluded; arrays [nodes].

    Attributes:
        path_prob: product of the drafter's probabilities from the root.
        depth: 1 for children of the root.
        rank: place among its siblings, 0 the best.
        accepted: the target accepted the whole path.
        prompt: number of its prompt, the same in each reply to that prompt.
        tree: number of its tree.
        place: rank among all nodes of its tree, 0 the best.
        level_prob: [nodes, depths], the drafter's probability of each node on the
            path, given the one before; 1 beyond the node's own depth.
        level_rank: [nodes, depths], their ranks; 0 beyond.
        parent_accepted: the target accepted the path to its parent.
    """

    path_prob: Floats
    depth: Ints
    rank: Ints
    accepted: Bools
    prompt: Ints
    tree: Ints
    place: Ints
    level_prob: Floats
    level_rank: Ints
    parent_accepted: Bools

    def __len__(self) -> int:
        return len(self.path_prob)

    def take(self, chosen: Bools | Ints) -> "Nodes":
        """The rows that a mask or indices choose."""
        return Nodes(*(getattr(self, each.name)[chosen] for each in fields(self)))


def nodes_of(replies: Sequence[Reply]) -> Nodes:
    """The nodes of all trees of some replies, one at least, in the replies' order."""
    numbers = prompt_numbers(replies)
    steps = [step for reply in replies for step in reply.steps]
    prompt_of_tree = np.repeat(numbers, [len(reply.steps) for reply in replies])
    sizes = [len(step.path_prob) for step in steps]
    tree = np.repeat(np.arange(len(steps)), sizes)
    start = np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)
    above = np.concatenate([step.parent for step in steps])
    parent = np.where(above >= 0, above + start, -1)
    path_prob = np.concatenate([step.path_prob for step in steps])
    depth = np.concatenate([step.depth for step in steps])
    rank = np.concatenate([step.rank for step in steps])
    accepted = np.concatenate([step.accepted for step in steps])
    own_prob = path_prob / np.maximum(_of_parent(path_prob, parent, 1.0), 1e-300)
    return Nodes(
        path_prob=path_prob,
        depth=depth,
        rank=rank,
        accepted=accepted,
        prompt=prompt_of_tree[tree],
        tree=tree,
        place=rank_within(tree, path_prob),
        level_prob=_along_path(np.minimum(own_prob, 1.0), parent, depth, 1.0),
        level_rank=_along_path(rank, parent, depth, 0),
        parent_accepted=_of_parent(accepted, parent, True),
    )


def _of_parent(values: Any, parent: Ints, root: Any) -> Any:
    return np.where(parent >= 0, values[parent], root)


def _along_path(own: Any, parent: Ints, depth: Ints, beyond: Any) -> Any:
    """Each node's own value and those of its ancestors, [nodes, depths]."""
    path = np.full((len(own), int(depth.max())), beyond, dtype=own.dtype)
    for level in range(1, path.shape[1] + 1):
        here = np.flatnonzero(depth == level)
        if level > 1:
            path[here] = path[parent[here]]
        path[here, level - 1] = own[here]
    return path


def prompt_names(replies: Sequence[Reply]) -> list[tuple[str, int]]:
    """Workload and prompt of each prompt number, sorted."""
    return sorted({(reply.workload, reply.prompt) for reply in replies})


def prompt_numbers(replies: Sequence[Reply]) -> list[int]:
    """The number of the prompt of each reply, from 0.

    Replies to one prompt share it, whatever their seeds and temperatures.
    """
    number = {name: i for i, name in enumerate(prompt_names(replies))}
    return [number[reply.workload, reply.prompt] for reply in replies]
