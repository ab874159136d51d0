"""A trace as arrays: the trees of all steps at a depth, and experts as bit sets.

A simulation needs the same of a step again and again: its best nodes at some depth,
which of them were accepted, and how many experts they activate together with the trees
of other requests. So the trees of each depth are padded into arrays once, and each
node's experts become one bit a layer, whose union is an OR.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from evict_profile.runtime import Calibration, ConditionalAcceptance
from evict_profile.runtime.calibration import Scoring
from evict_profile.runtime.levels import GrowingTrees
from evict_profile.stats import Bools, Floats, Ints
from evict_profile.traces import Step, Trace

Bits = NDArray[np.uint64]
WORD = 64


@dataclass(frozen=True, eq=False)
class Level:
    """One level of the trees of all steps, as a drafter gives it: family by family.

    Of each step those nodes that are among its N best when drafting ends here. Padding
    has probability 0.

    Attributes:
        prob: float64 [steps, P, K], given the parent; siblings by rank.
        parent: int64 [steps, P], the family's parent in the level before; None at the
            first.
        node: int64 [steps, P * K], indices into the step's nodes; -1 for padding.
    """

    prob: Floats
    parent: Ints | None
    node: Ints

    def of(self, rows: Ints) -> tuple[Floats, Ints | None]:
        """Probabilities and parents in some steps: what a policy is shown."""
        parent = None if self.parent is None else self.parent[rows]
        return self.prob[rows], parent


@dataclass(frozen=True, eq=False)
class DraftedTrees:
    """The trees of all steps drafted to one depth, level by level; [steps, nodes].

    `expert_row` is the row of a node in the expert sets of `TraceArrays`. Padding has
    its root's, and is never accepted.
    """

    accepted: Bools
    expert_row: Ints


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
        self.ranks = lru_cache(None)(self._ranks)

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

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The levels of all steps."""
        levels: list[Level] = []
        for depth in range(1, self.depth + 1):
            families = [self._families(step, depth) for step in self.steps]
            levels.append(self._level(families, levels[-1] if levels else None))
        return tuple(levels)

    def _families(self, step: Step, depth: int) -> dict[int, list[int]]:
        """Nodes of one level by their parent, in the order recorded, best first."""
        best = step.best(self.nodes + 1, depth)
        families: dict[int, list[int]] = {}
        for node in np.sort(best[step.depth[best] == depth]).tolist():
            families.setdefault(int(step.parent[node]), []).append(node)
        for siblings in families.values():
            siblings.sort(key=lambda node: -step.path_prob[node])
        return families

    def _level(
        self, families: Sequence[dict[int, list[int]]], before: Level | None
    ) -> Level:
        most = max(1, max(map(len, families)))
        ranks = max((len(s) for each in families for s in each.values()), default=1)
        node = np.full((len(families), most, ranks), -1)
        prob = np.zeros(node.shape)
        parent = np.zeros(node.shape[:2], dtype=np.int64)
        for row, (step, each) in enumerate(zip(self.steps, families, strict=True)):
            places = before.node[row].tolist() if before else []
            for family, (above, siblings) in enumerate(each.items()):
                reached = step.path_prob[above] if above >= 0 else 1.0
                node[row, family, : len(siblings)] = siblings
                if reached > 0.0:
                    shares = step.path_prob[siblings] / reached
                    prob[row, family, : len(siblings)] = shares
                if before:
                    parent[row, family] = places.index(above)
        return Level(prob, parent if before else None, node.reshape(len(node), -1))

    def _drafted(self, depth: int) -> DraftedTrees:
        """The nodes shown of each step, had it drafted to this depth."""
        none = np.empty((len(self.steps), 0), dtype=np.int64)
        node = np.concatenate([none, *(x.node for x in self.levels[:depth])], axis=1)
        held = node >= 0
        accepted = np.zeros(node.shape, dtype=np.bool_)
        for row, step in enumerate(self.steps):
            accepted[row, held[row]] = step.accepted[node[row, held[row]]]
        return DraftedTrees(accepted, self.root[:, None] + 1 + node)

    def _ranks(self, depth: int, conditional: ConditionalAcceptance | None) -> Ints:
        """How many nodes of its tree are worth more than each, int64 [steps, nodes].

        Of equals the first; padding comes after all.
        """
        trees = GrowingTrees(
            len(self.steps), Scoring(Calibration.by(conditional), None)
        )
        for level in self.levels[:depth]:
            trees.grow(level.prob, level.parent)
        order = np.argsort(-trees.worth, axis=1, kind="stable")
        ranks = np.empty_like(order)
        np.put_along_axis(ranks, order, np.arange(order.shape[1]), axis=1)
        ranked: Ints = np.where(trees.worth > 0.0, ranks, order.shape[1])
        return ranked

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
