"""How many levels the coming step drafts, from what past steps accepted.

Cutting a tree saves verification; levels that were drafted are paid for. So the depth
is decided before, as the best ratio of expected tokens to expected time.

A level's acceptance is the share of requests that accepted it among those that accepted
the one above it, over past steps, with one step more that accepts it as often as the
level above. So a level that was not drafted of late counts as the deepest that was.
"""

from collections.abc import Sequence

import numpy as np

from evict_profile.drafting import DraftClock
from evict_profile.stats import Floats, Ints

MEMORY = 0.5 ** (1.0 / 16.0)
"""What a step that drafts leaves of the steps before it."""

LEAST_STEPS, MOST_STEPS = 32, 512
"""Steps that a depth stays at least, and the most after others have failed."""

LEAST_GAIN = 1.02
"""Of tokens a microsecond, below which the depth stays."""


class DepthChoice:
    """Chooses one of several depths; begins with the deepest.

    A depth that is left after `LEAST_STEPS` has failed, and each failure doubles the
    time until it is tried again; one that is kept for longer resets that time. Only
    past steps are seen, which is lossless: docs/explanation/lossless.md.

    Attributes:
        depth: levels that the coming step drafts.
        switches: changes of the depth so far.
    """

    def __init__(self, depths: Sequence[int]) -> None:
        self._depths, self.depth, self.switches = depths, max(depths), 0
        self._sums = np.zeros((2, self.depth))  # requests that reached and accepted
        self._us = self._weight = 0.0
        self._steps, self._wait, self._retry = 0, LEAST_STEPS, LEAST_STEPS

    def __str__(self) -> str:
        return f"{self.depth} levels drafted after {self.switches} changes"

    def observe(self, accepted: Ints, verify_us: float) -> None:
        """Add a step of this depth: drafted tokens that each request accepted, int [B],
        and its time without drafting.
        """
        shares = (accepted[:, None] >= np.arange(self.depth + 1)).mean(axis=0)
        self._sums *= MEMORY
        self._sums[:, : self.depth] += shares[:-1], shares[1:]
        self._us = MEMORY * self._us + verify_us
        self._weight = MEMORY * self._weight + 1.0

    def choose(self, clock: DraftClock) -> int:
        """The depth of the coming step, given the time of drafting."""
        self._steps += 1
        if self._steps >= self._wait and self._weight:
            tokens, verify_us = self.expected_tokens(), self._us / self._weight
            us = {d: clock.beside_us(d) + verify_us for d in self._depths}
            rate, best = max((tokens.item(d) / us[d], d) for d in us)
            if rate > LEAST_GAIN * tokens.item(self.depth) / us[self.depth]:
                self._switch(best)
        return self.depth

    def _switch(self, depth: int) -> None:
        failed = self._steps == self._wait == LEAST_STEPS
        if failed:
            self._retry = min(2 * self._retry, MOST_STEPS)
        elif self._wait == LEAST_STEPS:
            self._retry = LEAST_STEPS
        self._wait = self._retry if failed else LEAST_STEPS
        self.depth, self._steps, self.switches = depth, 0, self.switches + 1

    def expected_tokens(self) -> Floats:
        """Tokens of a request in a step by depth, its own included: float64 [D + 1]."""
        share, chance, tokens = 0.5, 1.0, [1.0]
        for reached, accepted in self._sums.T.tolist():
            share = (accepted + share) / (reached + 1.0)
            chance *= share
            tokens.append(tokens[-1] + chance)
        return np.array(tokens)
