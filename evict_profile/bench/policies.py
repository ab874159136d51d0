"""Rules that choose how many tokens to verify, and what each earns.

Throughput over many steps is E[tokens] / E[time] (renewal reward: Ross, "Applied
Probability Models", 1970), not the mean of each step's ratio. The widths that maximise
it maximise benefit - rate * cost in each step, at the one rate that they then earn
(Dinkelbach, "On nonlinear fractional programming", 1967). That rate is the root of a
convex function, and the iteration rate <- tokens / time climbs to it.

Arrays over widths have tokens + 1 columns, so that t indexes; column 0 is never chosen.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evict_profile.bench.trees import DEPTH, Trees
from evict_profile.stats import Floats, Ints


@dataclass(frozen=True)
class Phase:
    """Steps of one kind of text, seen as rules and accounts need them."""

    trees: Trees

    @cached_property
    def benefit(self) -> Floats:
        """Tokens that the drafter expects of t, float64 [steps, tokens + 1]."""
        return _committed(self.trees.path_prob)

    @cached_property
    def true_benefit(self) -> Floats:
        """Tokens that t brings on average; what throughput is reckoned with."""
        return _committed(self.trees.accept_prob)

    @cached_property
    def committed(self) -> Floats:
        """Tokens that t brought in this draw; what an online rule can see."""
        return _committed(self.trees.accepted.astype(np.float64))

    @cached_property
    def accepted_length_share(self) -> Floats:
        """Share of steps in which 0, 1, ... draft tokens are right, [DEPTH + 1].

        At most one node of a depth is accepted, so their probabilities add up.
        """
        reached = [
            np.where(self.trees.depth == depth, self.trees.accept_prob, 0.0)
            for depth in range(1, DEPTH + 1)
        ]
        at_least = [1.0, *(float(p.sum(axis=1).mean()) for p in reached), 0.0]
        return -np.diff(at_least)


def _committed(node_value: Floats) -> Floats:
    """The target's own token and the best t - 1 nodes."""
    counted = 1.0 + np.cumsum(node_value, axis=1)
    steps = len(node_value)
    return np.hstack([np.zeros((steps, 1)), np.ones((steps, 1)), counted])


@dataclass(frozen=True)
class Earned:
    """Means over the steps of one phase."""

    tokens: float
    us: float
    width: float


def earned(true_benefit: Floats, cost_us: Floats, width: Ints) -> Earned:
    """What these widths [steps] bring; acceptance is averaged over, not drawn."""
    tokens = np.take_along_axis(true_benefit, width[:, None], axis=1)
    return Earned(
        float(tokens.mean()), float(cost_us[width].mean()), float(width.mean())
    )


def ratio_widths(benefit: Floats, cost_us: Floats) -> Ints:
    """EVICT: the largest benefit / cost of each step alone. Ties keep the smaller."""
    return _best(benefit[:, 1:] / cost_us[1:])


def rate_widths(benefit: Floats, cost_us: Floats, rate_per_us: float) -> Ints:
    """The largest benefit - rate * cost of each step. Ties keep the smaller."""
    return _best(benefit[:, 1:] - rate_per_us * cost_us[1:])


def _best(score: Floats) -> Ints:
    width: Ints = 1 + np.argmax(score, axis=1)
    return width


def optimal_rate_per_us(
    benefit: Floats, cost_us: Floats, share: Floats | None = None
) -> float:
    """Dinkelbach's fixed point: no widths earn more on these steps.

    `share` weighs the rows, where they stand for more steps than one.
    """
    rate = 0.0
    while True:
        width = rate_widths(benefit, cost_us, rate)
        tokens = np.take_along_axis(benefit, width[:, None], axis=1)[:, 0]
        climbed = float(
            np.average(tokens, weights=share)
            / np.average(cost_us[width], weights=share)
        )
        # It rises in each iteration but the last, where rounding may shake it.
        if climbed <= rate * (1.0 + 1e-12):
            return climbed
        rate = climbed


def optimal_widths(phase: Phase, cost_us: Floats) -> Ints:
    """The rate rule with true probabilities, at its own rate.

    The bound for all rules that cut these trees by what is known before verification.
    """
    rate = optimal_rate_per_us(phase.true_benefit, cost_us)
    return rate_widths(phase.true_benefit, cost_us, rate)


def oracle_earned(phase: Phase, cost_us: Floats) -> Earned:
    """One that knows what will be accepted, and verifies the part of it that pays.

    All it needs of a step is how many draft tokens are right: few rows, one a length.
    """
    share = phase.accepted_length_share
    drafted = np.maximum(np.arange(len(cost_us)) - 1, 0)
    length = np.arange(DEPTH + 1)[:, None]
    benefit = 1.0 + np.minimum(drafted, length).astype(np.float64)
    rate = optimal_rate_per_us(benefit, cost_us, share)
    width = rate_widths(benefit, cost_us, rate)
    tokens = np.take_along_axis(benefit, width[:, None], axis=1)[:, 0]
    values = (tokens, cost_us[width], width)
    return Earned(*(float(share @ value) for value in values))
