"""Policies: how deep to draft, and which nodes to verify.

A replay and an engine run the very same objects, so a replay's result is about what a
server would run. A policy sees a batch of draft trees, never what the target makes of
them. It may learn from what its steps committed and took, so every run needs a fresh
one, of a `MakePolicy`.

`Fixed` and `Threshold` read no cost table and learn nothing. `Guided` drives the
truncator of `evict_profile.runtime` itself in one of `VARIANTS`. Each differs from the
next in one thing, so that a replay shows what that is worth.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch

from evict_profile.runtime import CostTable, Plan, Truncator
from evict_profile.runtime.conditional import ConditionalScorer
from evict_profile.runtime.decision import Objective
from evict_profile.stats import Bools, Floats, Ints
from evict_profile.table import ConditionalAcceptance

AR = "plain decoding"
FULL_TREE = "full tree"
SERVED_TREE = "full tree, 32 tokens"
"""What engines ship with."""
BEST_WIDTH = "best fixed width"
BEST_PAIR = "best fixed depth and width"
PAIR_CONDITIONAL = "best fixed pair, conditional"
"""What ranking by conditional acceptance brings alone, at a pair fixed in hindsight."""
THRESHOLD = "best threshold"
HINDSIGHT = (BEST_WIDTH, BEST_PAIR, THRESHOLD, PAIR_CONDITIONAL)
"""Those set to what was fastest on the trace that is replayed."""
RATIO = "ratio"
"""EVICT's: each step alone."""
RATIO_RAW = "ratio, raw scores"
RATE = "rate"
"""The runtime's default: the last steps and this one."""
RATE_RAW = "rate, raw scores"
RATE_CONDITIONAL = "rate, conditional"
"""Nodes ranked by conditional acceptance: others are the best then."""
RATE_DEPTH = "rate and depth"
"""Which also asks before each level whether to draft it, the first included."""
DEPTH_CONDITIONAL = "rate and depth, conditional"
ORACLE = "oracle"


class Variant(NamedTuple):
    """How a policy that reads a table differs from the others of its kind.

    Attributes:
        raw: take path probabilities as they are, not the table's calibration.
        conditional: give the truncator the parents, so that it multiplies conditional
            acceptance level by level.
        chooses_depth: ask the truncator before each level; else all are drafted.
    """

    objective: Objective
    raw: bool = False
    conditional: bool = False
    chooses_depth: bool = False


VARIANTS = {
    RATIO_RAW: Variant("ratio", raw=True),
    RATIO: Variant("ratio"),
    RATE_RAW: Variant("rate", raw=True),
    RATE: Variant("rate"),
    RATE_CONDITIONAL: Variant("rate", conditional=True),
    RATE_DEPTH: Variant("rate", chooses_depth=True),
    DEPTH_CONDITIONAL: Variant("rate", conditional=True, chooses_depth=True),
}
"""Those that read a table, the simplest first."""
GUIDED = tuple(VARIANTS)


class Policy(Protocol):
    """What a decoding engine asks in every step."""

    @property
    def name(self) -> str:
        """What the policy is called in a report."""

    @property
    def depth(self) -> int:
        """Most levels to draft; 0 is plain decoding."""

    def deeper(
        self, path_prob: Floats, depth: Ints, parent: Ints, context: float
    ) -> bool:
        """Whether to draft another level; asked once before each.

        Args:
            path_prob: float64 [B, M], the M best nodes drafted so far, padding 0.
            depth: int64 [B, M], their depths, 1 and up.
            parent: int64 [B, M], their parents in the same row, -1 the root.
            context: tokens in a request's KV cache, mean over the batch.
        """

    def keep(
        self, path_prob: Floats, depth: Ints, parent: Ints, context: float
    ) -> Bools:
        """Which nodes are verified, bool [B, N], closed under ancestors.

        Takes what `deeper` takes, for the N best of all that was drafted, and never
        keeps padding. N is 0 where nothing was drafted.
        """

    def observe(self, committed: int, step_us: float) -> None:
        """How the step went: tokens committed over the batch, and its whole time."""


MakePolicy = Callable[[], Policy]


@dataclass(frozen=True)
class Fixed:
    """The best `width` - 1 nodes of every request, whatever they promise.

    The best by path probability, or by conditional acceptance.
    """

    name: str
    depth: int
    width: int
    conditional: ConditionalAcceptance | None = None

    @property
    def setting(self) -> str:
        """What hindsight can set."""
        return f"{self.width} tokens at depth {self.depth}"

    def deeper(
        self, path_prob: Floats, depth: Ints, parent: Ints, context: float
    ) -> bool:
        """Always down to its own depth."""
        return True

    def keep(
        self, path_prob: Floats, depth: Ints, parent: Ints, context: float
    ) -> Bools:
        """Of equals the first."""
        order = np.argsort(-path_prob, axis=1, kind="stable")
        if self.conditional is not None:
            worth = ConditionalScorer(self.conditional).on_cpu(path_prob, parent)
            order = np.lexsort((-path_prob, -worth), axis=1)
        best = order[:, : self.width - 1]
        kept = np.zeros(path_prob.shape, dtype=np.bool_)
        kept[np.arange(len(kept))[:, None], best] = True
        return kept & (path_prob > 0.0)

    def observe(self, committed: int, step_us: float) -> None:
        """Learns nothing."""


def plain_decoding() -> Fixed:
    """A width of one at no depth: nothing is drafted."""
    return Fixed(AR, 0, 1)


def full_tree(nodes: int, depth: int) -> Fixed:
    """Everything that is drafted, at most so many nodes."""
    return Fixed(FULL_TREE, depth, nodes + 1)


@dataclass(frozen=True)
class Threshold:
    """Nodes whose path probability reaches `least` (above 0), whatever they cost."""

    name: str
    depth: int
    least: float

    @property
    def setting(self) -> str:
        """What hindsight can set."""
        return f"{self.least:g}"

    def deeper(
        self, path_prob: Floats, depth: Ints, parent: Ints, context: float
    ) -> bool:
        """While a node of the last level could have a child that is kept."""
        last = depth == depth.max(initial=0)
        return not depth.any() or bool((path_prob[last] >= self.least).any())

    def keep(
        self, path_prob: Floats, depth: Ints, parent: Ints, context: float
    ) -> Bools:
        """Closed, because no child scores above its parent."""
        return path_prob >= self.least

    def observe(self, committed: int, step_us: float) -> None:
        """Learns nothing."""


class Guided:
    """A truncator that plans from a cost table.

    It is told that trees hold the drafter's best tokens, accepted target-only, and
    prices at the table's edge what lies outside: a replay lists that among its caveats,
    and an engine checks before it starts.
    """

    def __init__(
        self, name: str, depth: int, table: CostTable, variant: Variant
    ) -> None:
        """`depth` is the most levels to draft."""
        self.name, self.depth, self._variant = name, depth, variant
        self._plan: Plan | None = None
        self._truncator = Truncator(
            table,
            drafts="topk",
            acceptance="target-only",
            objective=variant.objective,
            calibration=None if variant.raw else "table",
            outside="clamp",
        )

    def deeper(
        self, path_prob: Floats, depth: Ints, parent: Ints, context: float
    ) -> bool:
        """Whether the truncator expects another level to pay."""
        if not self._variant.chooses_depth:
            return True
        return self._truncator.deeper(
            torch.from_numpy(path_prob),
            torch.from_numpy(depth),
            context,
            parent=self._parent(parent),
        )

    def keep(
        self, path_prob: Floats, depth: Ints, parent: Ints, context: float
    ) -> Bools:
        """The plan's nodes, less padding that fills a tier."""
        self._plan = self._truncator.plan(
            torch.from_numpy(path_prob),
            context,
            depth=torch.from_numpy(depth),
            parent=self._parent(parent),
        )
        kept: Bools = self._plan.keep.numpy()
        return kept & (path_prob > 0.0)

    def observe(self, committed: int, step_us: float) -> None:
        """Told to the truncator."""
        if self._plan is not None:
            self._truncator.observe(self._plan, committed, step_us)

    def _parent(self, parent: Ints) -> torch.Tensor | None:
        return torch.from_numpy(parent) if self._variant.conditional else None


def guided(table: CostTable, depth: int) -> Mapping[str, MakePolicy]:
    """Makers of the policies that read a table, by name.

    A table without calibration has raw scores alone, and knows neither conditional
    acceptance nor what a level not yet drafted would bring; policies that need those
    are left out.

    Args:
        table: what they decide with, right or wrong.
        depth: most levels to draft.
    """

    def maker(name: str, variant: Variant) -> MakePolicy:
        return lambda: Guided(name, depth, table, variant)

    known = table.acceptance
    told = {
        "raw": known is not None,
        "conditional": bool(known and known.conditional),
        "chooses_depth": bool(known and known.per_rank and table.drafting),
    }
    return {
        name: maker(name, variant)
        for name, variant in VARIANTS.items()
        if all(told[need] for need in told if getattr(variant, need))
    }
