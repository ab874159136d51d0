"""A trace's steps as objects: slow and plain, for oracles."""

from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np

from evict_profile.traces import Nodes, Trace, TraceInfo


@dataclass
class Step:
    """One step; nodes are numbered within its tree."""

    position: int
    context: int
    parent: np.ndarray
    path_prob: np.ndarray
    depth: np.ndarray
    rank: np.ndarray
    accepted: np.ndarray
    routes: np.ndarray | None

    def best(self, width, depth=None):
        """The `width` - 1 most probable nodes of at most that depth, best first."""
        order = np.argsort(-self.path_prob, kind="stable")
        if depth is not None:
            order = order[self.depth[order] <= depth]
        return order[: width - 1]

    def committed(self, kept):
        return 1 + int(self.accepted[kept].sum())

    def union(self, kept):
        """Distinct experts of the root and these nodes, mean over layers."""
        rows = self.routes[np.concatenate(([0], kept + 1))]
        return float(np.mean([len(np.unique(layer)) for layer in rows.swapaxes(0, 1)]))


def steps_of(trace):
    nodes, first = trace.nodes, np.cumsum([0, *trace.size])
    for number, (low, high) in enumerate(pairwise(first)):
        own, root = slice(low, high), trace.root[number]
        yield Step(
            position=int(trace.position[number]),
            context=int(trace.context[number]),
            parent=np.maximum(nodes.parent[own] - low, -1),
            path_prob=nodes.path_prob[own],
            depth=nodes.depth[own],
            rank=nodes.rank[own],
            accepted=nodes.accepted[own],
            routes=None
            if trace.routes is None
            else trace.routes[root : root + high - low + 1],
        )


def replies_of(trace):
    steps = list(steps_of(trace))
    return [steps[a:b] for a, b in zip(trace.first, trace.end, strict=True)]


def make_nodes(*trees):
    """Trees, each its parents, path probabilities and what was accepted."""
    parents, path_prob, accepted = zip(*trees, strict=True)
    size = [len(each) for each in parents]
    step = np.repeat(np.arange(len(trees)), size)
    parent = np.array([*chain(*parents)], np.int64)
    first = (np.cumsum(size) - size)[step]
    return Nodes(
        step,
        np.where(parent >= 0, parent + first, -1),
        np.array([*chain(*path_prob)], np.float64),
        np.array([*chain(*accepted)], bool),
    )


def make_steps(replies, trees, positions=None):
    """A trace of these replies, of as many steps each, with these trees in turn."""
    each = len(trees) // len(replies)
    position = np.array(positions or [*range(each)] * len(replies))
    reply = np.repeat(np.arange(len(replies)), each)
    nodes = make_nodes(*trees)
    return Trace(TraceInfo(), tuple(replies), reply, position, 0 * position, nodes)
