"""One price a token count, out of staircases of several batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from evict_profile.errors import TableError
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


def check_steers(
    curve: TokenCurve, staircases: Sequence[Staircase], most_tokens: int | None
) -> None:
    """Refuse a curve by which a planner would never trim, or that ends too early.

    Args:
        most_tokens: that the engine will ask a price for; None leaves it open.

    Raises:
        TableError: flat, inert, or shorter than what will be asked.
    """
    rising = np.maximum.accumulate(curve.step_cost_us)
    last = int(curve.tokens[-1])
    if most_tokens is not None and most_tokens > last:
        raise TableError(
            f"the curve ends at {last} tokens, and the engine will ask for up to "
            f"{most_tokens}; sweep further, or let it run fewer requests or drafts"
        )
    if rising[-1] == rising[0]:
        raise TableError(
            f"the curve is flat from {curve.tokens[0]} to {last} tokens: by it no "
            "draft ever costs anything; sweep wider, with routed experts that run"
        )
    if not any(_rises(stairs) for stairs in staircases):
        raise TableError(
            "the curve is inert: it rises from batch to batch alone, at no size that a "
            "planner can pick within one, so that it would never trim; sweep more "
            "widths"
        )


def _rises(stairs: Staircase) -> bool:
    own = np.maximum.accumulate(stairs.step_cost_us[stairs.batch :])
    return bool(own[-1] > own[0])
