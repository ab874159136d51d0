"""What decides how deep to draft and what to verify; and the fixed policies."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from evict_profile.stats import Bools, Floats, Ints


class Policy(Protocol):
    """Decides how deep to draft and what to verify; see evict_profile.replay.policies.

    Arrays are [requests, nodes]; `parent` is a node of the same row, -1 the root;
    `context` is the mean of cached tokens a request.
    """

    @property
    def depth(self) -> int:
        """Most levels to draft; 0 is plain decoding."""

    def deeper(
        self, path_prob: Floats, depth: Ints, parent: Ints, context: float
    ) -> bool:
        """Whether to draft another level; asked once before each."""

    def keep(
        self, path_prob: Floats, depth: Ints, parent: Ints, context: float
    ) -> Bools:
        """Which nodes to verify, closed under ancestors."""

    def observe(self, committed: int, step_us: float) -> None:
        """How the step went: tokens of all requests, and its time."""


@dataclass(frozen=True)
class Always:
    """Draft `depth` levels and verify the best `width` - 1 nodes; 0 and 1 is plain."""

    depth: int
    width: int

    def deeper(
        self, path_prob: Floats, depth: Ints, parent: Ints, context: float
    ) -> bool:
        """Until the last level."""
        return True

    def keep(
        self, path_prob: Floats, depth: Ints, parent: Ints, context: float
    ) -> Bools:
        """The best by path probability."""
        best = np.argsort(-path_prob, axis=1, kind="stable")[:, : self.width - 1]
        kept = np.zeros(path_prob.shape, dtype=np.bool_)
        np.put_along_axis(kept, best, True, axis=1)
        return kept

    def observe(self, committed: int, step_us: float) -> None:
        """Learns nothing."""


@dataclass(frozen=True)
class Shallow(Always):
    """The same, but drafting stops after `levels`: 0 is a plain step now and then."""

    levels: int

    def deeper(
        self, path_prob: Floats, depth: Ints, parent: Ints, context: float
    ) -> bool:
        """Until its own last level."""
        return int(depth.max(initial=0)) < self.levels
