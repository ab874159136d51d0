"""What is decided: how many nodes of the pooled draft trees are verified, and which.

Sort all nodes that compete by score. A child never scores above its parent, so the best
k nodes are closed under ancestors, and no other closed set of k nodes has a larger sum.
One scan over k therefore finds the optimum over all closed sets: of benefit / cost
(EVICT, arXiv 2605.00342), or of benefit - rate * cost, the renewal-reward optimum.
"""

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Literal, get_args

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor

from evict_profile.errors import PlanError
from evict_profile.runtime.checks import number, one_of, sizes
from evict_profile.stats import Bools, Floats, Ints

try:
    kernels = import_module("evict_profile.runtime._scan")
except ImportError:
    kernels = import_module("evict_profile.runtime.scan_numpy")

COMPILED = kernels.__name__.endswith("._scan")

Objective = Literal["ratio", "rate"]
Allocation = Literal["batch", "uniform"]
OBJECTIVES, ALLOCATIONS = get_args(Objective), get_args(Allocation)


class Plan(Struct, frozen=True):
    """What a truncator decided for one step.

    Attributes:
        widths: int64 [B], tokens of each request, its root included.
        keep: bool [B, N], closed under ancestors. Where captured sizes are filled or
            all requests get one width it can mark padding: a place that runs anyway.
        tokens: tokens verified in all, before padding to a captured size.
        claimed: expected number of accepted draft tokens, by the scores.
        step_cost_us: cost of the parts of the step in `includes`, by the table; NaN
            where there are none.
        trust: factor applied to expected acceptance, learned from recent steps.
        caveats: reasons why the cost is not exactly the table's.
        includes: parts of the step in the cost: "verify", and "draft" and "fixed"
            where the table knows them and the plan was given depths; none where the
            width is fixed.
    """

    widths: Tensor
    keep: Tensor
    tokens: int
    claimed: float
    step_cost_us: float
    trust: float
    caveats: tuple[str, ...]
    includes: tuple[str, ...] = ("verify",)

    @property
    def whole_step(self) -> bool:
        """Whether the cost is that of the whole step."""
        return "draft" in self.includes

    @property
    def expected_tokens(self) -> float:
        """Tokens expected to be committed over the batch; never more than verified."""
        expected = len(self.widths) + self.trust * self.claimed
        return min(expected, float(self.tokens))


class Terms(Struct, frozen=True, gc=False):
    """The numbers in what is maximised: (tokens + benefit) / (us + cost).

    With a rate it is benefit - rate * cost. Drafts count `trust` times their score.
    """

    trust: float = 1.0
    tokens: float = 0.0
    us: float = 0.0
    rate: float = math.nan

    def start(self, batch: int) -> float:
        """What is had without a draft token; all is divided by the trust."""
        return (batch + self.tokens) / self.trust


def pools_of(allocation: Allocation, batch: int) -> int:
    """Pools in which nodes compete: one of all requests, or one of each.

    Pools keep equally many, so that k nodes a pool verify batch + k * pools tokens.
    """
    return 1 if allocation == "batch" else batch


def reachable_costs(
    cost_us: Floats,
    batch: int,
    nodes: int,
    pools: int,
    capture_sizes: Sequence[int] | None,
) -> Floats:
    """Step cost when each pool keeps k nodes, k = 0..most, float64 [most + 1].

    `cost_us[t]` is the step cost of t tokens in all; with captured sizes it is read at
    the next of them, and there is nothing beyond the last.
    """
    used = cost_us[batch:]
    if len(used) and not (used.min() > 0.0 and np.isfinite(used.max())):
        raise PlanError("cost_us holds a cost that is not finite or not above zero")
    padded = (
        cost_us if capture_sizes is None else _padded(cost_us, pools, capture_sizes)
    )
    # A copy, because kernels read it by its first address, and owners keep theirs.
    costs = np.array(padded[batch::pools][: batch * nodes // pools + 1], np.float64)
    if not len(costs):
        raise PlanError(
            f"a batch of {batch} verifies {batch} tokens at the least, and the costs"
            f"{' on these capture sizes' if capture_sizes else ''} reach "
            f"{max(len(padded) - 1, 0)}; "
            "give costs, and capture sizes, that reach further"
        )
    return costs


def _padded(cost_us: Floats, pools: int, capture_sizes: Sequence[int]) -> Floats:
    captured = np.array(capture_sizes, dtype=np.int64) * pools
    captured = captured[captured < len(cost_us)]
    if not len(captured):
        return cost_us[:0]
    tokens = np.arange(captured[-1] + 1)
    return cost_us[captured[np.searchsorted(captured, tokens)]]


def decide(
    scores: Floats, costs: Floats, pools: int, terms: Terms, ties: Floats | None = None
) -> tuple[Bools, Ints, int, float]:
    """The kept nodes, bool [B, N], the tokens of each request, int64 [B], the nodes k
    of a pool, and the sum of their scores.

    `scores` [B, N] are contiguous, parents before children where the two tie; `ties`
    ranks nodes of equal scores. Values alone are sorted, since a sort of indices takes
    ten times as long: nodes above the k-th score are kept, and of its equals the first.
    """
    batch = len(scores)
    best = scores.copy() if pools == batch else scores.reshape(pools, -1).copy()
    best.sort()
    keep, widths = np.empty(scores.shape, bool), np.empty(batch, int)
    start, rate = terms.start(batch), terms.rate / terms.trust
    found = kernels.select_nodes(
        scores, best, ties, costs, start, terms.us, rate, keep, widths, batch, pools
    )
    if found is None:
        raise no_probability("path_prob")
    return keep, widths, *found


def select_widths(
    path_prob: Tensor,
    cost_us: Floats | Tensor,
    objective: Objective = "ratio",
    capture_sizes: Sequence[int] | None = None,
    allocation: Allocation = "batch",
    rate: float | None = None,
) -> Tensor:
    """The verify width of each request, int64 [B].

    Optimal over all ancestor-closed sets of nodes; ties keep the smaller width.

    Args:
        path_prob: floats [B, N], root excluded; nodes in any order in which a parent
            stands before a child of the same probability; padding is 0.
        cost_us: [T + 1], on the host; cost_us[t] is the cost of a step that verifies
            t tokens in all, as `CostTable.step_cost_us` gives it.
        objective: "ratio" maximises committed tokens over cost in this step (EVICT);
            "rate" maximises committed tokens - rate * cost.
        capture_sizes: totals that the engine can run, or widths when uniform.
        allocation: see `Truncator`.
        rate: long-run tokens a microsecond, which "rate" needs.

    Raises:
        PlanError: probabilities, costs, capture_sizes or rate that cannot be used.
    """
    one_of("objective", objective, OBJECTIVES)
    one_of("allocation", allocation, ALLOCATIONS)
    if objective == "rate" and rate is None:
        raise PlanError(
            "objective 'rate' needs the long-run tokens a microsecond; give rate=, or "
            "use a Truncator, which learns from its past"
        )
    terms = Terms(rate=number("rate", rate)) if objective == "rate" else Terms()
    scores = host_floats(path_prob)
    pools = pools_of(allocation, len(scores))
    (batch, nodes), captured = scores.shape, sizes("capture_sizes", capture_sizes)
    costs = reachable_costs(_host_costs(cost_us), batch, nodes, pools, captured)
    return torch.from_numpy(decide(scores, costs, pools, terms)[1])


def host_floats(path_prob: Tensor) -> Floats:
    """float64 [B, N]; a tensor on a device is copied to the host."""
    try:
        found: NDArray[Any] = path_prob.numpy()
    except AttributeError as error:
        raise PlanError(
            f"path_prob is a {type(path_prob).__name__}; give a tensor"
        ) from error
    except (RuntimeError, TypeError):  # gradients, bfloat16, or a device
        found = path_prob.detach().cpu().double().numpy()
    if found.ndim != 2 or not len(found):
        raise PlanError(
            f"path_prob has shape {list(found.shape)}; give [requests, nodes] with "
            "at least one request"
        )
    if found.dtype.kind != "f":
        raise PlanError(f"path_prob is {found.dtype}; give floating point numbers")
    return np.ascontiguousarray(found, np.float64)


def _host_costs(cost_us: Floats | Tensor) -> Floats:
    try:
        found: Floats = np.asarray(cost_us, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PlanError(f"cost_us holds no numbers on the host: {error}") from error
    if found.ndim != 1:
        raise PlanError(f"cost_us has {found.ndim} dimensions; give one, [tokens + 1]")
    return found


def no_probability(name: str) -> PlanError:
    """The refusal of numbers that are no probabilities."""
    return PlanError(
        f"{name} holds a value that is NaN or outside [0, 1]; give probabilities, and "
        "0 where a request has fewer nodes"
    )
