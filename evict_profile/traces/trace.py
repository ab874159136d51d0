"""A trace in memory: replies, their steps, and the draft tree of each step.

A reply with a tree at every position can be replayed under any truncation: at position
i it commits c tokens and continues at i + c.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from evict_profile.config import ModelSpec
from evict_profile.drafting import DraftClock
from evict_profile.errors import DataError
from evict_profile.stats import Bools, Floats, Ints, rank_within

Routes = NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class Nodes:
    """Nodes of draft trees without roots, tree by tree; arrays [nodes].

    Attributes:
        step: index of the tree's step, non-decreasing.
        parent: index of the parent, less than the node's own; -1 is the root.
        path_prob: product of the drafter's probabilities from the root.
        accepted: the target accepted the whole path to the node.
    """

    step: Ints
    parent: Ints
    path_prob: Floats
    accepted: Bools

    def __len__(self) -> int:
        return len(self.step)

    @cached_property
    def depth(self) -> Ints:
        depth, above = np.ones(len(self), np.int64), self.parent
        while (inner := above >= 0).any():
            depth += inner
            above = np.where(inner, self.parent[above], -1)
        return depth

    @cached_property
    def family(self) -> Ints:
        return np.where(self.parent >= 0, self.parent, -1 - self.step)

    @cached_property
    def rank(self) -> Ints:
        """Rank among siblings by path probability, from 0."""
        return rank_within(self.family, self.path_prob)

    @cached_property
    def place(self) -> Ints:
        """Rank in the tree by path probability, from 0; ties keep their order."""
        return rank_within(self.step, self.path_prob)

    @cached_property
    def own_prob(self) -> Floats:
        above = np.where(self.parent >= 0, self.path_prob[self.parent], 1.0)
        return np.minimum(self.path_prob / np.maximum(above, 1e-300), 1.0)

    @cached_property
    def parent_accepted(self) -> Bools:
        return (self.parent < 0) | self.accepted[self.parent]

    def take(self, chosen: Ints) -> "Nodes":
        moved = np.arange(len(chosen)) - chosen
        above = self.parent[chosen]
        parent = np.where(above >= 0, above + moved, -1)
        return Nodes(
            self.step[chosen], parent, self.path_prob[chosen], self.accepted[chosen]
        )


def falling(parent: Ints, path_prob: Floats) -> Floats:
    """Path probabilities limited to the parent's, float64 [nodes]."""
    lowered = np.minimum(path_prob, 1.0)
    while True:
        most = np.where(parent >= 0, lowered[parent], 1.0)
        if not (lowered > most).any():
            return lowered
        lowered = np.minimum(lowered, most)


@dataclass(frozen=True)
class Reply:
    workload: str
    prompt: int
    seed: int = 0
    temperature: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.workload}, prompt {self.prompt}, seed {self.seed}, "
            f"temperature {self.temperature:g}"
        )


@dataclass(frozen=True)
class TraceInfo:
    """What was recorded, and on what; 0 and "" if unknown.

    `reference_us` is the recorder's reference work, at whose speed all clocks are.
    `depth`, `topk`, `nodes` are levels of a draft tree, nodes expanded per level, nodes
    verified.
    """

    model: str = "unnamed"
    layers: int = 0
    experts: int = 0
    top_k: int = 0
    depth: int = 0
    topk: int = 0
    nodes: int = 0
    engine: str = ""
    engine_version: str = ""
    device: str = ""
    threads: int = 0
    weights_sha256: str = ""
    reference_us: float = 0.0

    def speed_on(self, engine: str, reference_us: float | None) -> float:
        """The factor from these clocks to another machine's; 1 if unknown."""
        if engine != self.engine or not (reference_us and self.reference_us):
            return 1.0
        return reference_us / self.reference_us


@dataclass(frozen=True, eq=False)
class Trace:
    """Steps in order of replies and positions, at least one.

    Attributes:
        replies: sorted by workload, temperature, prompt and seed.
        reply: int64 [steps], index into `replies`.
        position: int64 [steps], tokens of the reply committed before it.
        context: int64 [steps], tokens in the target's KV cache.
        routes: int16 [steps + nodes, layers, k], experts of roots, each before its
            nodes.
        verify_us: float64 [steps], the target's forward.
    """

    about: TraceInfo
    replies: tuple[Reply, ...]
    reply: Ints
    position: Ints
    context: Ints
    nodes: Nodes
    routes: Routes | None = None
    verify_us: Floats | None = None
    clocks: tuple[DraftClock, ...] = ()

    def __len__(self) -> int:
        return len(self.reply)

    @cached_property
    def size(self) -> Ints:
        return np.bincount(self.nodes.step, minlength=len(self))

    @cached_property
    def root(self) -> Ints:
        """Row of each step's root in `routes`, int64 [steps]."""
        return np.cumsum(self.size + 1) - self.size - 1

    @cached_property
    def first(self) -> Ints:
        return np.searchsorted(self.reply, np.arange(len(self.replies)))

    @cached_property
    def end(self) -> Ints:
        return np.searchsorted(self.reply, np.arange(len(self.replies)), side="right")

    @cached_property
    def is_dense(self) -> Bools:
        """Replies with a tree at every position, bool [replies]."""
        apart = self.position != np.arange(len(self)) - self.first[self.reply]
        dense: Bools = np.bincount(self.reply, apart, len(self.replies)) == 0
        return dense

    @property
    def dense(self) -> bool:
        return bool(self.is_dense.all())

    @cached_property
    def tokens(self) -> Ints:
        """Tokens of each reply, int64 [replies]; the last sparse step commits its full
        tree's.
        """
        accepted = np.bincount(self.nodes.step, self.nodes.accepted, len(self))
        last = self.end - 1
        committed = np.where(self.is_dense, 1, 1 + accepted[last].astype(np.int64))
        return self.position[last] + committed

    @cached_property
    def prompts(self) -> tuple[tuple[str, int], ...]:
        return tuple(sorted({(reply.workload, reply.prompt) for reply in self.replies}))

    @cached_property
    def prompt(self) -> Ints:
        place = {prompt: i for i, prompt in enumerate(self.prompts)}
        return np.array([place[reply.workload, reply.prompt] for reply in self.replies])

    @property
    def workloads(self) -> tuple[str, ...]:
        return tuple(sorted({reply.workload for reply in self.replies}))

    @property
    def temperatures(self) -> tuple[float, ...]:
        return tuple(sorted({reply.temperature for reply in self.replies}))

    def take(self, steps: Ints) -> "Trace":
        size, numbers = self.size[steps], np.arange(len(steps))
        first = (np.cumsum(self.size) - self.size)[steps]
        nodes = self.nodes.take(ranges(first, size))
        kept, reply = np.unique(self.reply[steps], return_inverse=True)
        rows = ranges(self.root[steps], size + 1)
        return replace(
            self,
            replies=tuple(self.replies[place] for place in kept),
            reply=reply,
            position=self.position[steps],
            context=self.context[steps],
            nodes=replace(nodes, step=np.repeat(numbers, size)),
            routes=None if self.routes is None else self.routes[rows],
            verify_us=None if self.verify_us is None else self.verify_us[steps],
        )

    def part(self, index: int, count: int) -> "Trace":
        kept = np.array([reply.prompt % count == index for reply in self.replies])
        if not kept.any():
            raise DataError(
                f"part {index + 1}/{count} of this trace holds no prompt; it has "
                f"{len(self.prompts)} in all"
            )
        return self.take(np.flatnonzero(kept[self.reply]))

    def only(
        self, workloads: Collection[str] = (), temperatures: Collection[float] = ()
    ) -> "Trace":
        kept, every = np.zeros(len(self.replies), bool), (None,)
        for workload, temperature in product(workloads or every, temperatures or every):
            chosen = [
                workload in (None, reply.workload)
                and temperature in (None, reply.temperature)
                for reply in self.replies
            ]
            if not any(chosen):
                there = {f"{r.workload} at {r.temperature:g}" for r in self.replies}
                raise DataError(
                    f"the trace holds no reply of workload {workload or 'any'} at "
                    f"temperature {'any' if temperature is None else temperature}; it "
                    f"holds {', '.join(sorted(there))}"
                )
            kept |= chosen
        return self.take(np.flatnonzero(kept[self.reply]))


def ranges(first: Ints, size: Ints) -> Ints:
    before = np.cumsum(size) - size
    numbers: Ints = np.arange(int(size.sum())) + np.repeat(first - before, size)
    return numbers


def check_same_model(about: TraceInfo, model: ModelSpec, noun: str = "trace") -> None:
    recorded = (about.layers, about.experts, about.top_k)
    covered = (model.moe_layers, model.moe.num_experts, model.moe.top_k)
    if about.experts and recorded != covered:
        raise DataError(
            f"the {noun} is of {_shape(recorded)} ({about.model}), and the table "
            f"is of {_shape(covered)} ({model.name}); give the table of the model "
            "that was recorded"
        )


def check_one_temperature(trace: Trace) -> None:
    if len(trace.temperatures) > 1:
        text = ", ".join(f"{value:g}" for value in trace.temperatures)
        raise DataError(
            f"the trace holds temperatures {text}, and what is right for one is wrong "
            "for another; choose one with --temperature"
        )


def check_trees(trace: Trace) -> None:
    if not len(trace.nodes):
        raise DataError(
            "the trace holds no draft node, only plain steps; record while drafting"
        )


def _shape(numbers: tuple[int, int, int]) -> str:
    return "{} MoE layers of {} experts, top-{}".format(*numbers)
