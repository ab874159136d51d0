"""A trace in memory: replies, their draft trees, and what the target accepted.

A tree recorded at every position of a reply lets a replay decode as an engine would,
whatever it cuts: at position i it commits c tokens and goes on at i + c.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evict_profile.config import ModelSpec
from evict_profile.errors import TraceError
from evict_profile.stats import Bools, Floats, Ints, rank_within
from evict_profile.table import DraftClock

Routes = NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees end to end.

    Attributes:
        tree: int64 [nodes], the tree of each node, non-decreasing.
        parent: int64 [nodes], place of the parent, below the node's own; -1 the root.
        path_prob: float64 [nodes].
    """

    tree: Ints
    parent: Ints
    path_prob: Floats

    @cached_property
    def depth(self) -> Ints:
        """Steps from the root, int64 [nodes], 1 and up."""
        depth, above = np.ones(len(self.parent), np.int64), self.parent
        while (inner := above >= 0).any():
            depth += inner
            above = np.where(inner, self.parent[above], -1)
        return depth

    @cached_property
    def family(self) -> Ints:
        """A number that siblings share and nobody else has, int64 [nodes]."""
        return np.where(self.parent >= 0, self.parent, -1 - self.tree)

    @cached_property
    def rank(self) -> Ints:
        """Place among the siblings by path probability, int64 [nodes], 0 the best."""
        return rank_within(self.family, self.path_prob)

    @cached_property
    def falling(self) -> Floats:
        """Path probabilities with each rise above the parent cut off, float64 [nodes].

        So the best nodes are closed under ancestors whatever rounding did.
        """
        lowered = np.minimum(self.path_prob, 1.0)
        for level in range(2, int(self.depth.max(initial=1)) + 1):
            here = np.flatnonzero(self.depth == level)
            lowered[here] = np.minimum(lowered[here], lowered[self.parent[here]])
        return lowered


@dataclass(frozen=True)
class StageTimes:
    """Where the time of one recorded step went.

    Attributes:
        draft_us: of each draft level, the first level first.
        verify_us: of the target's forward over the whole tree.
        fixed_us: of everything else: acceptance, compaction, host.
    """

    draft_us: tuple[float, ...]
    verify_us: float
    fixed_us: float


@dataclass(frozen=True, eq=False)
class Step:
    """One draft tree at one place of one reply; N nodes, root excluded.

    Attributes:
        position: tokens of the reply committed before it.
        context: tokens in the target's KV cache.
        parent: int64 [N], index of the parent, -1 the root; parents come first.
        path_prob: float64 [N], product of drafter probabilities from the root; never
            above the parent's.
        depth: int64 [N], 1 and up.
        rank: int64 [N], place among its siblings by path_prob, 0 the best.
        accepted: bool [N], the target accepted the whole path to the node, with the
            full tree verified.
        routes: int16 [N + 1, layers, k], experts of the root and of each node.
        times: None where the recorder had no clock.
    """

    position: int
    context: int
    parent: Ints
    path_prob: Floats
    depth: Ints
    rank: Ints
    accepted: Bools
    routes: Routes | None = None
    times: StageTimes | None = None

    def best(self, width: int, depth: int | None = None) -> Ints:
        """Indices of the `width` - 1 best nodes of at most that depth, best first.

        Ties keep the recorded order, so the nodes are closed under ancestors.
        """
        order = self._order
        if depth is not None:
            order = order[self.depth[order] <= depth]
        return order[: width - 1]

    def committed(self, kept: Ints) -> int:
        """Tokens that the step commits if these nodes, closed under ancestors, are
        verified: those accepted, and one of the target's own."""
        return 1 + int(self.accepted[kept].sum())

    def union(self, kept: Ints) -> float:
        """Distinct experts of the root and these nodes, mean over layers."""
        if self.routes is None:
            raise TraceError(
                "this trace holds no routes, so its unions are unknown; record them, "
                "or price the union with a table's activation curve"
            )
        rows = self.routes[np.concatenate(([0], kept + 1))]
        layers = rows.shape[1]
        active = np.zeros((layers, 1 + int(rows.max())), bool)
        active[np.arange(layers)[None, :, None], rows] = True
        return float(active.sum() / layers)

    @cached_property
    def _order(self) -> Ints:
        return np.argsort(-self.path_prob, kind="stable")


def make_step(
    position: int,
    parent: ArrayLike,
    path_prob: ArrayLike,
    accepted: ArrayLike,
    context: int = 0,
    routes: Routes | None = None,
    times: StageTimes | None = None,
) -> Step:
    """A step from what cannot be derived; depth and rank are."""
    above = np.asarray(parent, np.int64)
    tree = np.zeros(len(above), np.int64)
    forest = Forest(tree, above, np.asarray(path_prob, np.float64))
    return Step(
        position,
        context,
        above,
        forest.falling,
        forest.depth,
        forest.rank,
        np.asarray(accepted, bool),
        routes,
        times,
    )


@dataclass(frozen=True, eq=False)
class Reply:
    """One reply to one prompt; `steps` by position."""

    workload: str
    prompt: int
    seed: int
    temperature: float
    steps: tuple[Step, ...]

    @property
    def dense(self) -> bool:
        """Whether there is a tree at every position: any cut can be replayed."""
        return all(i == step.position for i, step in enumerate(self.steps))

    @property
    def tokens(self) -> int:
        """Tokens of the reply that its steps tell of.

        A dense reply has one step a token. Another one was committed step by step,
        and its last step committed what the full tree allowed.
        """
        last = self.steps[-1]
        every = np.arange(len(last.parent))
        return last.position + (1 if self.dense else last.committed(every))


@dataclass(frozen=True)
class About:
    """What was recorded, on what; zeros and empty strings where nobody said.

    Attributes:
        layers, experts, top_k: of the target's MoE layers; needed to read routes.
        reference_us: the recorder's reference work, at the speed of which all its
            clocks are told; 0 where it has none. A table's sweep may have run faster.
        depth, topk, nodes: levels of a draft tree, nodes expanded a level (and
            children of each), and nodes verified.
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


@dataclass(frozen=True, eq=False)
class Trace:
    """Replies, ordered by workload, temperature, prompt and seed; never none."""

    about: About
    replies: tuple[Reply, ...]
    clocks: tuple[DraftClock, ...] = ()

    @cached_property
    def dense(self) -> bool:
        """Whether every reply has a tree at every position."""
        return all(reply.dense for reply in self.replies)

    @property
    def workloads(self) -> tuple[str, ...]:
        """Names of the workloads, sorted."""
        return tuple(sorted({reply.workload for reply in self.replies}))

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Temperatures, ascending."""
        return tuple(sorted({reply.temperature for reply in self.replies}))

    @property
    def steps(self) -> Sequence[Step]:
        """All steps, reply by reply."""
        return [step for reply in self.replies for step in reply.steps]

    def part(self, index: int, count: int) -> "Trace":
        """Every `count`-th prompt from `index` on, of each workload.

        What is learnt on one part and judged on another is judged on unseen text.
        """
        kept = tuple(r for r in self.replies if r.prompt % count == index)
        if not kept:
            raise TraceError(
                f"part {index + 1}/{count} of this trace holds no prompt; it has "
                f"{len({(r.workload, r.prompt) for r in self.replies})} in all"
            )
        return replace(self, replies=kept)

    def only(
        self, workload: str | None = None, temperature: float | None = None
    ) -> "Trace":
        """The replies of one workload, of one temperature, or of both."""
        kept = tuple(
            reply
            for reply in self.replies
            if workload in (None, reply.workload)
            and temperature in (None, reply.temperature)
        )
        if not kept:
            there = {f"{r.workload} at {r.temperature:g}" for r in self.replies}
            asked = [f"of workload {workload}"] * (workload is not None)
            asked += [f"at temperature {temperature}"] * (temperature is not None)
            raise TraceError(
                f"the trace holds no reply {' '.join(asked)}; it holds "
                f"{', '.join(sorted(there))}"
            )
        return replace(self, replies=kept)


def check_same_model(about: About, model: ModelSpec, noun: str = "trace") -> None:
    """Check that a recording's routes can be those of the model.

    A recording that does not state its number of experts passes.
    """
    recorded = (about.layers, about.experts, about.top_k)
    priced = (model.moe_layers, model.moe.num_experts, model.moe.top_k)
    if about.experts and recorded != priced:
        raise TraceError(
            f"the {noun} is of {_shape(recorded)} ({about.model}), and the table "
            f"prices {_shape(priced)} ({model.name}); give the table of the model "
            "that was recorded"
        )


def check_one_temperature(trace: Trace) -> None:
    """Check that a trace has one temperature: acceptance differs between them."""
    if len(trace.temperatures) > 1:
        found = ", ".join(f"{each:g}" for each in trace.temperatures)
        raise TraceError(
            f"the trace holds temperatures {found}, and what is right for one is wrong "
            "for another; choose one with --temperature"
        )


def check_trees(trace: Trace) -> None:
    """Check that a trace holds draft nodes."""
    if not any(len(step.parent) for step in trace.steps):
        raise TraceError(
            "the trace holds no draft node, only plain steps; record while drafting"
        )


def _shape(numbers: tuple[int, int, int]) -> str:
    return "{} MoE layers of {} experts, top-{}".format(*numbers)
