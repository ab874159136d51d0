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
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from evict_profile.errors import PlanError

Floats = NDArray[np.float64]
Objective = Literal["ratio", "rate"]
Allocation = Literal["batch", "uniform"]
OBJECTIVES, ALLOCATIONS = get_args(Objective), get_args(Allocation)

LARGEST_PROBABILITY = 1.0 + 1e-5
"""A product of float32 softmaxes may pass 1 by rounding, and by no more."""


class Terms(NamedTuple):
    """The numbers in what is maximised.

    `ratio`: (tokens + benefit) / (us + cost); with zeros, EVICT's.
    `rate`: benefit - rate * cost. Draft tokens count `trust` times their probability.
    """

    trust: float = 1.0
    tokens: float = 0.0
    us: float = 0.0
    rate: float = 0.0


@dataclass(frozen=True)
class Rule:
    """What is maximised, and over what."""

    objective: Objective = "ratio"
    allocation: Allocation = "batch"

    def __post_init__(self) -> None:
        _one_of("objective", self.objective, OBJECTIVES)
        _one_of("allocation", self.allocation, ALLOCATIONS)

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
        PlanError: a cost that is NaN or not positive, a ladder that does not
            increase, or no reachable size.
    """
    used = cost_us[batch:]
    if len(used) and not (used.min() > 0.0 and np.isfinite(used.max())):
        raise PlanError("cost_us holds a cost that is not finite or not above zero")
    pools = rule.pools(batch)
    padded = cost_us if not ladder else _padded(cost_us, pools, ladder)
    # Contiguous, because kernels read it by its first address.
    costs = np.ascontiguousarray(padded[batch::pools][: batch * nodes // pools + 1])
    if not len(costs):
        raise PlanError(
            f"a batch of {batch} verifies {batch} tokens at the least, and cost_us "
            f"reaches {len(padded) - 1}; give costs, or a ladder, for this batch"
        )
    return costs


def _padded(cost_us: Floats, pools: int, ladder: Sequence[int]) -> Floats:
    rungs = np.asarray(ladder, dtype=np.int64)
    if np.any(np.diff(rungs, prepend=0) <= 0):
        raise PlanError(f"ladder {list(ladder)} must hold increasing sizes above zero")
    reached = rungs[rungs * pools < len(cost_us)] * pools
    if not len(reached):
        return cost_us[:0]
    asked = np.arange(reached[-1] + 1)
    return cost_us[reached[np.searchsorted(reached, asked)]]


def _one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise PlanError(f"{name} '{value}' is not one of {', '.join(allowed)}")
