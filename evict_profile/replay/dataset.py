"""A trace as a simulation reads it: padded trees of all steps, experts as bit sets."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from evict_profile.runtime import Calibration, ConditionalAcceptance
from evict_profile.runtime.scoring import GrowingTrees
from evict_profile.stats import Bools, Floats, Ints, rank_within
from evict_profile.traces import Trace

Bits = NDArray[np.uint64]
WORD = 64


@dataclass(frozen=True, eq=False)
class Level:
    """One level of all trees, family by family; see `PolicyStep.extend`.

    `node`, int64 [steps, P * K], are the trace's nodes; -1 is padding.
    """

    prob: Floats
    parent: Ints | None
    node: Ints

    def of(self, rows: Ints) -> tuple[Floats, Ints | None]:
        parent = None if self.parent is None else self.parent[rows]
        return self.prob[rows], parent


@dataclass(frozen=True, eq=False)
class DraftedTrees:
    """The trees of all steps drafted to one depth, level by level; [steps, nodes].

    `expert_row` indexes the trace's routes; padding has its root's.
    """

    accepted: Bools
    expert_row: Ints


class TraceArrays:
    """The steps of a trace, and which step follows each.

    Attributes:
        depth, nodes, topk: levels that can be drafted, the most nodes verified, and
            those that are expanded in a level.
        tokens_left: int64 [steps], tokens of the reply that a step can still commit.
    """

    def __init__(self, trace: Trace) -> None:
        nodes = trace.nodes
        self.trace = trace
        self.depth = trace.about.depth or int(nodes.depth.max(initial=0))
        self.nodes = trace.about.nodes or int(trace.size.max())
        self.topk = trace.about.topk or self.nodes
        self.first, self.end, self.reply = trace.first, trace.end, trace.reply
        self.tokens_left: Ints = trace.tokens[trace.reply] - trace.position
        self.context: Floats = trace.context.astype(np.float64)
        self.root, self.prompts, self.prompt = trace.root, trace.prompts, trace.prompt
        self.tokens, self.has_routes = int(trace.tokens.sum()), trace.routes is not None
        self.drafted = lru_cache(None)(self._drafted)
        self.ranks = lru_cache(None)(self._ranks)

    def next_rows(self, rows: Ints, committed: Ints) -> Ints:
        """The step after each, given the tokens it committed; -1 at the reply's end.

        In a sparse trace it is the next recorded step.
        """
        ahead = rows + (committed if self.trace.dense else 1)
        over = (committed >= self.tokens_left[rows]) | (
            ahead >= self.end[self.reply[rows]]
        )
        return np.where(over, -1, ahead)

    def mean_context(self, rows: Ints) -> float:
        return float(np.add.reduce(self.context[rows])) / len(rows)

    def union(self, expert_rows: Ints) -> float:
        """Distinct experts of these nodes together, mean over layers."""
        together = np.bitwise_or.reduce(self._experts[expert_rows], axis=0)
        return float(np.bitwise_count(together).sum()) / len(together)

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        levels: list[Level] = []
        slot = np.zeros(len(self.trace.nodes), np.int64)
        for depth in range(1, self.depth + 1):
            levels.append(self._level(depth, slot))
        return tuple(levels)

    def _level(self, depth: int, slot: Ints) -> Level:
        """A level in recorded order, siblings best first; `slot` gets their columns."""
        nodes, steps = self.trace.nodes, len(self.trace)
        shown = self._shown(depth)
        step, above = nodes.step[shown], nodes.parent[shown]
        own = nodes.path_prob[shown]
        _, first, family = np.unique(
            nodes.family[shown], return_index=True, return_inverse=True
        )
        # Families of a step count up from 0, in the order of their first nodes.
        order = np.argsort(np.argsort(first))
        count = np.bincount(step[first], minlength=steps)
        begins = np.cumsum(count) - count
        place = order[family] - begins[step]
        rank = rank_within(family, own)
        most, ranks = max(1, int(count.max())), 1 + int(rank.max(initial=0))
        slot[shown] = place * ranks + rank
        reached = np.where(above >= 0, nodes.path_prob[above], 1.0)
        node = np.full((steps, most, ranks), -1)
        prob = np.zeros(node.shape)
        parent = np.zeros(node.shape[:2], dtype=np.int64)
        node[step, place, rank] = shown
        prob[step, place, rank] = np.divide(
            own, reached, out=np.zeros_like(own), where=reached > 0.0
        )
        parent[step, place] = slot[above]
        return Level(prob, parent if depth > 1 else None, node.reshape(steps, -1))

    def _shown(self, depth: int) -> Ints:
        """Nodes of a level that are among the best when drafting ends there."""
        nodes = self.trace.nodes
        drafted = np.flatnonzero(nodes.depth <= depth)
        place = rank_within(nodes.step[drafted], nodes.path_prob[drafted])
        shown: Ints = drafted[(place < self.nodes) & (nodes.depth[drafted] == depth)]
        return shown

    def _drafted(self, depth: int) -> DraftedTrees:
        steps = np.arange(len(self.trace))[:, None]
        none = np.empty((len(steps), 0), dtype=np.int64)
        node = np.concatenate([none, *(x.node for x in self.levels[:depth])], axis=1)
        accepted = np.append(self.trace.nodes.accepted, False)[node]
        # The roots of a step and of those before it stand before its nodes.
        row = np.where(node >= 0, node + 1 + steps, self.root[:, None])
        return DraftedTrees(accepted, row)

    def _ranks(self, depth: int, conditional: ConditionalAcceptance | None) -> Ints:
        """Nodes of its tree that come before each by score, int64 [steps, nodes]."""
        trees = GrowingTrees(len(self.trace), Calibration.by(conditional))
        for level in self.levels[:depth]:
            trees.grow(level.prob, level.parent)
        order = np.argsort(-trees.scores, axis=1, kind="stable")
        ranks = np.empty_like(order)
        np.put_along_axis(ranks, order, np.arange(order.shape[1]), axis=1)
        return np.where(trees.scores > 0.0, ranks, order.shape[1])

    @cached_property
    def _experts(self) -> Bits:
        """One bit an expert, uint64 [roots and nodes, layers, words]."""
        assert self.trace.routes is not None, "unions are of traces with routes"
        routes = self.trace.routes.astype(np.uint64)
        words = int(routes.max()) // WORD + 1
        bits = np.zeros((*routes.shape[:2], words), dtype=np.uint64)
        for word in range(words):
            here = routes // WORD == word
            flags = np.where(here, np.uint64(1) << routes % WORD, np.uint64(0))
            bits[..., word] = np.bitwise_or.reduce(flags, axis=2)
        return bits
