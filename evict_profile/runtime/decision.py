"""What is decided: how many nodes of the pooled draft trees are verified.

Sort all nodes that compete by path probability. A child never scores above its
parent, so the best k nodes are closed under ancestors, and no other closed set of k
nodes has a larger sum. One scan over k therefore finds the optimum over all closed
sets: of a ratio (`ratio`, EVICT, arXiv 2605.00342: benefit / cost), or of benefit -
rate * cost (`rate`, the renewal-reward optimum at a known rate). Benefit counts
committed tokens: one a request for its root, and the acceptance probability of every
node kept.

Nodes compete in pools. With allocation "batch" there is one pool, and each further
node costs one token; with "uniform" every request is a pool of its own, all keep
equally many, and each step in k costs one token a request. So in both cases k more
nodes a pool verify batch + k * pools tokens in all.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from msgspec import Struct

from evict_profile.errors import PlanError
from evict_profile.runtime.checks import one_of
from evict_profile.stats import Floats

Objective = Literal["ratio", "rate"]
Allocation = Literal["batch", "uniform"]
OBJECTIVES, ALLOCATIONS = get_args(Objective), get_args(Allocation)

LARGEST_PROBABILITY = 1.0 + 1e-5
"""A product of float32 softmaxes may pass 1 by rounding, and by no more."""


class Terms(Struct, frozen=True, gc=False):
    """The numbers in what is maximised.

    `ratio`: (tokens + benefit) / (us + cost); with zeros, EVICT's.
    `rate`: benefit - rate * cost. Draft tokens count `trust` times their probability.
    """

    trust: float = 1.0
    tokens: float = 0.0
    us: float = 0.0
    rate: float = 0.0

    def later(self, us: float) -> "Terms":
        """With so much more time."""
        return Terms(self.trust, self.tokens, self.us + us, self.rate)

    def start(self, batch: int) -> float:
        """What is had without a draft token, in claimed tokens.

        All is divided by the trust: that leaves the order, and saves a pass.
        """
        return (batch + self.tokens) / self.trust


class Rule(Struct, frozen=True):
    """What is maximised, and over what."""

    objective: Objective = "ratio"
    allocation: Allocation = "batch"

    def __post_init__(self) -> None:
        one_of("objective", self.objective, OBJECTIVES)
        one_of("allocation", self.allocation, ALLOCATIONS)

    def pools(self, batch: int) -> int:
        """Pools that the nodes of a batch compete in."""
        return 1 if self.allocation == "batch" else batch


def reachable_costs(
    cost_us: Floats, batch: int, nodes: int, rule: Rule, ladder: Sequence[int] | None
) -> Floats:
    """Step cost when each pool keeps k nodes, k = 0..most, float64 [most + 1].

    Args:
        cost_us: float64 [T + 1]; cost_us[t] is the step cost of t tokens in all.
        batch: requests, B.
        nodes: draft nodes of a request, N, its root excluded.
        rule: what competes with what.
        ladder: totals that the engine can run (widths, when uniform), increasing;
            cost is read at the next of them, and there is nothing beyond the last.

    Raises:
        PlanError: a cost that is not finite or not positive, or no reachable size.
    """
    used = cost_us[batch:]
    if len(used) and not (used.min() > 0.0 and np.isfinite(used.max())):
        raise PlanError("cost_us holds a cost that is not finite or not above zero")
    pools = rule.pools(batch)
    padded = cost_us if ladder is None else _padded(cost_us, pools, ladder)
    # A copy, because kernels read it by its first address, and owners keep theirs.
    costs = np.array(padded[batch::pools][: batch * nodes // pools + 1])
    if not len(costs):
        raise PlanError(
            f"a batch of {batch} verifies {batch} tokens at the least, and the costs"
            f"{' on this ladder' if ladder else ''} reach {max(len(padded) - 1, 0)}; "
            "give costs, and a ladder, that reach further"
        )
    return costs


def _padded(cost_us: Floats, pools: int, ladder: Sequence[int]) -> Floats:
    rungs = np.array(ladder, dtype=np.int64) * pools
    reached = rungs[rungs < len(cost_us)]
    if not len(reached):
        return cost_us[:0]
    asked = np.arange(reached[-1] + 1)
    return cost_us[reached[np.searchsorted(reached, asked)]]
