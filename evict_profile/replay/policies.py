"""Ways to choose how deep to draft and which nodes to verify.

A replay and an engine run the very same objects, so what a replay says of a policy is
said of what a server would run. A policy sees a batch of draft trees, never what the
target makes of them. It may learn from what its steps committed and took, so every run
needs a fresh one, of a `MakePolicy`. Here are those that read no table; the others
stand in `replay.guided`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from evict_profile.runtime.links import LinkCurves
from evict_profile.stats import Bools, Floats, Ints

AR = "plain decoding"
FULL_TREE = "full tree"
SERVED_TREE = "full tree, 32 tokens"
"""What engines ship with."""
BEST_WIDTH = "best fixed width"
BEST_PAIR = "best fixed depth and width"
THRESHOLD = "best threshold"
RATIO = "ratio"
"""EVICT's: each step alone."""
RATIO_RAW = "ratio, raw scores"
RATE = "rate"
"""The runtime's default: the last steps and this one."""
RATE_RAW = "rate, raw scores"
RATE_DEPTH = "rate and depth"
"""Which also asks before each level whether to draft it, the first included."""
RATE_LINKS = "rate, links"
DEPTH_LINKS = "rate and depth, links"
"""Nodes scored link by link: then others are the best, not only other prices."""
PAIR_LINKS = "best fixed pair, links"
"""What that ranking alone brings, at a width fixed in hindsight."""
ORACLE = "oracle"

GUIDED = (
    RATIO_RAW,
    RATIO,
    RATE_RAW,
    RATE,
    RATE_LINKS,
    RATE_DEPTH,
    DEPTH_LINKS,
)
"""Those that read a table, the simplest first."""


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

    The best by path probability, or by links. Width 1 at depth 0 is plain decoding.
    """

    name: str
    depth: int
    width: int
    links: LinkCurves | None = None

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
        if self.links is not None:
            worth = self.links.on_cpu(path_prob, parent)
            order = np.lexsort((-path_prob, -worth), axis=1)
        best = order[:, : self.width - 1]
        kept = np.zeros(path_prob.shape, dtype=np.bool_)
        kept[np.arange(len(kept))[:, None], best] = True
        return kept & (path_prob > 0.0)

    def observe(self, committed: int, step_us: float) -> None:
        """Learns nothing."""


def plain_decoding() -> Fixed:
    """Plain decoding."""
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
