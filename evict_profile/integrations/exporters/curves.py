"""One price a token count, out of staircases of several batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from evict_profile.stats import Bools, Floats, Ints
from evict_profile.table import Staircase


def measured_tokens(stairs: Staircase) -> range:
    """Token counts that the batch of this staircase can ask for."""
    return range(stairs.batch, len(stairs.step_cost_us))


def measured_points(staircases: Sequence[Staircase]) -> list[tuple[int, int, float]]:
    """(batch, tokens, step cost) of all that was measured."""
    return [
        (stairs.batch, tokens, stairs.step_cost_us[tokens])
        for stairs in staircases
        for tokens in measured_tokens(stairs)
    ]


@dataclass(frozen=True)
class TokenCurve:
    """Step cost by tokens in all.

    Attributes:
        tokens: int64 [counts], increasing; counts that no measured batch makes are
            absent.
        step_cost_us: float64 [counts].
        apart: largest relative difference, over the staircases, between what a
            staircase says and what the curve says at the same tokens.
    """

    tokens: Ints
    step_cost_us: Floats
    apart: float

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """First and last token count of each stretch that was not measured."""
        steps = pairwise(self.tokens.tolist())
        return tuple((low + 1, high - 1) for low, high in steps if high - low > 1)

    @property
    def begins_tier(self) -> Bools:
        """bool [counts]: whether the cost is another than one count before."""
        return np.append(True, np.diff(self.step_cost_us) != 0.0)


def token_curve(staircases: Sequence[Staircase]) -> TokenCurve:
    """The curve of staircases at one context, smallest batch first."""
    _, measured, cost_us = np.array(measured_points(staircases)).T
    tokens, first, which = np.unique(measured, return_index=True, return_inverse=True)
    apart = np.abs(cost_us[first][which] / cost_us - 1.0).max()
    return TokenCurve(tokens.astype(np.int64), cost_us[first], float(apart))
