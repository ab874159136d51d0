"""A trace as arrays: the trees of all steps at a depth, and experts as bit sets.

A simulation needs the same of a step again and again: its best nodes at some depth,
which of them were accepted, and how many experts they activate together with the trees
of other requests. So the trees of each depth are padded into arrays once, and each
node's experts become one bit a layer, whose union is an OR.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from evict_profile.stats import Bools, Floats, Ints
from evict_profile.traces import Trace

Bits = NDArray[np.uint64]
WORD = 64


@dataclass(frozen=True, eq=False)
class DraftedTrees:
    """The trees of all steps drafted to one depth, best node first; [steps, nodes].

    Padding has path probability and depth 0. `parent` is a column of the same row, -1
    the root. `expert_row` is the node's row in the expert sets of `TraceArrays`, its
    root's for padding.
    """

    path_prob: Floats
    depth: Ints
    parent: Ints
    accepted: Bools
    expert_row: Ints

    def seen(self, rows: Ints) -> tuple[Floats, Ints, Ints]:
        """Path probability, depth and parent in some steps: what a policy is shown."""
        return self.path_prob[rows], self.depth[rows], self.parent[rows]


class TraceArrays:
    """The steps of a trace end to end, and which step follows each.

    Attributes:
        trace: what it was made of.
        depth, nodes: levels that can be drafted, and the most nodes verified.
        first, end: int64 [replies], rows of each reply's first step and behind its
            last.
        reply: int64 [steps], the reply of each.
        tokens_left: int64 [steps], tokens of the reply that a step can still commit.
        context: float64 [steps], tokens in the KV cache.
    """

    def __init__(self, trace: Trace) -> None:
        """Arrays of a trace; its replies keep their order."""
        steps = trace.steps
        sizes = np.array([len(reply.steps) for reply in trace.replies])
        self.trace = trace
        self.steps = steps
        self.depth = trace.about.depth or max(
            int(step.depth.max(initial=0)) for step in steps
        )
        self.nodes = trace.about.nodes or max(len(step.parent) for step in steps)
        self.end: Ints = np.cumsum(sizes)
        self.first: Ints = self.end - sizes
        self.reply: Ints = np.repeat(np.arange(len(sizes)), sizes)
        tokens = np.array([reply.tokens for reply in trace.replies])
        position = np.array([step.position for step in steps])
        self.tokens_left: Ints = tokens[self.reply] - position
        self.context: Floats = np.array([float(step.context) for step in steps])
        self.drafted = lru_cache(None)(self._drafted)

    @cached_property
    def tokens(self) -> int:
        """Tokens of all replies."""
        return sum(reply.tokens for reply in self.trace.replies)

    @cached_property
    def prompts(self) -> tuple[tuple[str, int], ...]:
        """The prompts, each a workload and a number."""
        return tuple(dict.fromkeys((r.workload, r.prompt) for r in self.trace.replies))

    @cached_property
    def prompt(self) -> Ints:
        """The index in `prompts` of each reply, int64 [replies]."""
        index = {prompt: i for i, prompt in enumerate(self.prompts)}
        return np.array([index[r.workload, r.prompt] for r in self.trace.replies])

    @cached_property
    def has_routes(self) -> bool:
        """Whether the experts of every node are known."""
        return all(step.routes is not None for step in self.steps)

    def next_rows(self, rows: Ints, committed: Ints) -> Ints:
        """The step after each, given the tokens it committed; -1 at the reply's end.

        A dense trace has a tree at the position reached. In a sparse one the next
        recorded step stands in for it.
        """
        ahead = rows + (committed if self.trace.dense else 1)
        over = (committed >= self.tokens_left[rows]) | (
            ahead >= self.end[self.reply[rows]]
        )
        return np.where(over, -1, ahead)

    def mean_context(self, rows: Ints) -> float:
        """Tokens in a request's KV cache, mean over the steps that run together."""
        return float(np.add.reduce(self.context[rows])) / len(rows)

    def union(self, expert_rows: Ints) -> float:
        """Distinct experts that these nodes activate together, mean over layers."""
        together = np.bitwise_or.reduce(self._experts[expert_rows], axis=0)
        return float(np.bitwise_count(together).sum()) / len(together)

    @cached_property
    def root(self) -> Ints:
        """The row of each step's root in the expert sets, int64 [steps]."""
        sizes = np.array([len(step.parent) + 1 for step in self.steps])
        starts: Ints = np.cumsum(sizes) - sizes
        return starts

    def _drafted(self, depth: int) -> DraftedTrees:
        """The best nodes of each step, had it drafted to this depth."""
        rows = [step.best(self.nodes + 1, depth) for step in self.steps]
        shape = (len(rows), max(map(len, rows)))
        prob, deep = np.zeros(shape), np.zeros(shape, dtype=np.int64)
        parent = np.full(shape, -1)
        accepted = np.zeros(shape, dtype=np.bool_)
        expert_row = np.repeat(self.root[:, None], shape[1], axis=1)
        for row, (step, best) in enumerate(zip(self.steps, rows, strict=True)):
            held = slice(0, len(best))
            prob[row, held] = step.path_prob[best]
            deep[row, held] = step.depth[best]
            column = np.full(len(step.parent) + 1, -1)
            column[best] = np.arange(len(best))
            # The root's index, -1, reads the last entry, which stays -1.
            parent[row, held] = column[step.parent[best]]
            accepted[row, held] = step.accepted[best]
            expert_row[row, held] += 1 + best
        return DraftedTrees(prob, deep, parent, accepted, expert_row)

    @cached_property
    def _experts(self) -> Bits:
        """One bit an expert, uint64 [roots and nodes, layers, words]."""
        found = [step.routes for step in self.steps if step.routes is not None]
        routes = np.concatenate(found).astype(np.uint64)
        words = int(routes.max()) // WORD + 1
        bits = np.zeros((*routes.shape[:2], words), dtype=np.uint64)
        for word in range(words):
            here = routes // WORD == word
            flags = np.where(here, np.uint64(1) << routes % WORD, np.uint64(0))
            bits[..., word] = np.bitwise_or.reduce(flags, axis=2)
        return bits
