"""One decision: how many nodes are verified and which, given past steps.

A child never scores above its parent, so the k nodes of highest score are closed under
ancestors, and no other closed set of k nodes has a larger sum. One scan over k finds
the optimum over all closed sets: of benefit / cost (EVICT, arXiv 2605.00342), or of
benefit - rate * cost, the renewal-reward optimum.

EVICT's ratio sees one step: it cuts easy steps too early and hard ones too late.
`History` adds past steps: (past tokens + benefit) / (past time + cost), of which half
fades in two steps (docs/research/measurements.md).
"""

import math
from collections import deque
from collections.abc import Sequence
from importlib import import_module
from statistics import median
from typing import Literal, get_args

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from evict_profile.errors import ConfigError
from evict_profile.runtime import checks
from evict_profile.runtime.costs import (
    ALLOCATIONS,
    Allocation,
    Place,
    pools_of,
    reachable_costs,
)
from evict_profile.stats import Bools, Floats, Ints

try:
    kernels = import_module("evict_profile.runtime._scan")
except ImportError:
    kernels = import_module("evict_profile.runtime.scan_numpy")

COMPILED = kernels.__name__.endswith("._scan")

Objective = Literal["ratio", "rate"]
OBJECTIVES = get_args(Objective)

MEMORY = 0.5 ** (1.0 / 2.0)
"""What a step leaves of tokens and time before it."""
ACCEPTANCE_MEMORY = 0.5 ** (1.0 / 64.0)
PRIOR_TOKENS = 4.0
"""Weight of "scores are right". It never fades: without it, trees cut to their roots
would give nothing to learn from."""

TIMED_STEPS = 15

BACKOFF_MEMORY = 0.5 ** (1.0 / 8.0)
MAX_BACKOFF_STEPS = 32


class Plan(Struct, frozen=True):
    """What a truncator decided for one step.

    Attributes:
        host_widths: int64 [B], tokens of each request, its root included.
        host_keep: bool [B, N], closed under ancestors; it can mark padding where
            captured sizes are filled or all requests get one width.
        tokens: tokens verified in all, before padding to a captured size.
        expected_accepted: expected number of accepted draft tokens, by the scores.
        step_cost_us: the table's cost of the parts in `includes`; NaN without any.
        acceptance_ratio: factor on expected acceptance, learned from recent steps.
        caveats: reasons why the cost is not exactly the table's.
        place: where the costs were read.
        includes: "verify"; with depths also "draft" and "fixed" where the table knows
            them; empty at a fixed width.
    """

    host_widths: Ints
    host_keep: Bools
    tokens: int
    expected_accepted: float
    step_cost_us: float
    acceptance_ratio: float
    caveats: tuple[str, ...]
    place: Place
    includes: tuple[str, ...] = ("verify",)

    @property
    def widths(self) -> Tensor:
        """`host_widths` as a tensor of the same memory."""
        return torch.from_numpy(self.host_widths)

    @property
    def keep(self) -> Tensor:
        """`host_keep` as a tensor of the same memory."""
        return torch.from_numpy(self.host_keep)

    @property
    def whole_step(self) -> bool:
        return "draft" in self.includes

    @property
    def expected_tokens(self) -> float:
        """Tokens expected to be committed over the batch; never more than verified."""
        expected = len(self.host_keep) + self.acceptance_ratio * self.expected_accepted
        return min(expected, float(self.tokens))


class Terms(Struct, frozen=True, gc=False):
    """The constants of the objective: (tokens + benefit) / (us + cost).

    With a rate it is benefit - rate * cost. Benefit is `acceptance_ratio` times scores.
    """

    acceptance_ratio: float = 1.0
    tokens: float = 0.0
    us: float = 0.0
    rate: float = math.nan

    def base_tokens(self, batch: int) -> float:
        """Tokens without a draft; all is divided by the acceptance ratio."""
        return (batch + self.tokens) / self.acceptance_ratio


def decide(
    scores: Floats, costs: Floats, pools: int, terms: Terms, ties: Floats | None = None
) -> tuple[Bools, Ints, int, float]:
    """Kept nodes, bool [B, N]; tokens of each request, int64 [B]; k; the sum of scores.

    `scores` [B, N] are contiguous, parents before children of equal score; `ties` ranks
    nodes of equal scores. Sorting values takes a tenth of sorting indices, so nodes
    above the k-th score are kept, and of its equals the first.
    """
    batch = len(scores)
    best = np.sort(scores) if pools > 1 else np.empty(scores.size)
    keep, widths = np.empty(scores.shape, bool), np.empty(batch, int)
    base, rate = terms.base_tokens(batch), terms.rate / terms.acceptance_ratio
    found = kernels.select_nodes(
        scores, best, ties, costs, base, terms.us, rate, keep, widths, batch, pools
    )
    if found is None:
        raise checks.no_probability("path_prob")
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
        path_prob: as of `Truncator.plan`.
        cost_us: [T + 1], on the host; cost_us[t] is the cost of a step that verifies t
            tokens in all, as `CostTable.step_cost_us` gives it.
        objective: "ratio" maximises committed tokens over cost in this step (EVICT);
            "rate" maximises committed tokens - rate * cost.
        capture_sizes: totals that the engine can run, or widths when uniform.
        allocation: see `Truncator`.
        rate: long-run tokens a microsecond, which "rate" needs.

    Raises:
        ConfigError: probabilities, costs, capture_sizes or rate that cannot be used.
    """
    checks.one_of("objective", objective, OBJECTIVES)
    checks.one_of("allocation", allocation, ALLOCATIONS)
    if objective == "rate" and rate is None:
        raise ConfigError(
            "objective 'rate' needs the long-run tokens a microsecond; give rate=, or "
            "use a Truncator, which learns from its past"
        )
    is_rate = objective == "rate"
    terms = Terms(rate=checks.number("rate", rate)) if is_rate else Terms()
    scores = checks.host_floats(path_prob)
    batch, nodes = scores.shape
    pools = pools_of(allocation, batch)
    captured = checks.sizes("capture_sizes", capture_sizes)
    us = checks.host_costs(cost_us)
    costs = reachable_costs(us, batch, nodes, pools, captured)
    return torch.from_numpy(decide(scores, costs, pools, terms)[1])


class DraftBackoff:
    """Whether to draft at all in the coming step.

    Steps are skipped while drafted steps commit fewer tokens a time than plain ones. A
    skipped step shows nothing, so one step drafts after 1, 2, 4 and at last every 32 of
    them. Past steps fade meanwhile, so that one good step decides then.
    """

    def __init__(self) -> None:
        self._tokens_each = self._us = 0.0
        self._skipped = 0
        self.backoff_steps = 1

    def observe(self, tokens_each: float, us: float, drafted: bool) -> None:
        self._tokens_each *= BACKOFF_MEMORY
        self._us *= BACKOFF_MEMORY
        if drafted:
            self._tokens_each += tokens_each
            self._us += us

    def should_skip(self, plain_us: float) -> bool:
        """Whether the coming step drafts nothing; call it once a step."""
        if self._tokens_each * plain_us >= self._us:
            self._skipped, self.backoff_steps = 0, 1
            return False
        if self._skipped >= self.backoff_steps:
            self._skipped = 0
            self.backoff_steps = min(2 * self.backoff_steps, MAX_BACKOFF_STEPS)
            return False
        self._skipped += 1
        return True


class History:
    """Fading sums over the steps of one truncator, tokens of each request.

    `acceptance_ratio`, accepted over expected draft tokens, corrects scores that are
    off.
    """

    def __init__(self, learns: bool, overhead_us: float = 0.0) -> None:
        self._learns, self.overhead_us = learns, overhead_us
        self._tokens_each = self._us = self._accepted = self._expected = 0.0
        self._timed: deque[float] = deque(maxlen=TIMED_STEPS)
        self.acceptance_ratio, self.backoff = 1.0, DraftBackoff()

    def terms(self, batch: int) -> Terms:
        us = self._us + self.overhead_us
        return Terms(self.acceptance_ratio, self._tokens_each * batch, us)

    def observe(self, plan: Plan, committed: float, step_us: float | None) -> None:
        batch = len(plan.host_widths)
        committed = checks.number("committed_tokens", committed)
        if not batch <= committed <= plan.tokens:
            raise ConfigError(
                f"committed_tokens {committed:g} is not within {batch}..{plan.tokens}: "
                "each request gains its own token, and no more than were verified"
            )
        if step_us is not None:
            step_us = checks.number("step_us", step_us)
        drafted = plan.host_keep.shape[1] > 0
        cost_us = plan.step_cost_us
        self.backoff.observe(plan.expected_tokens / batch, cost_us, drafted)
        if self._learns:
            # A machine that is slower by a factor is slower for every choice. Only
            # where a cost lacks parts of the step do times show what is missing.
            timed_us = None if plan.whole_step else step_us
            accepted = committed - batch
            self.add(batch, accepted, plan.expected_accepted, cost_us, timed_us)

    def add(
        self, batch: int, accepted: float, expected: float, cost_us: float,
        timed_us: float | None,
    ) -> None:  # fmt: skip
        """Add a step, and let older ones fade.

        Expected tokens are summed, since accepted ones are noisier.
        """
        if timed_us is not None:
            self._timed.append(max(timed_us - cost_us, 0.0))
            self.overhead_us = median(self._timed)
        tokens_each = 1.0 + self.acceptance_ratio * expected / batch
        self._tokens_each = MEMORY * (self._tokens_each + tokens_each)
        self._us = MEMORY * (self._us + cost_us + self.overhead_us)
        self._accepted = ACCEPTANCE_MEMORY * self._accepted + accepted
        self._expected = ACCEPTANCE_MEMORY * self._expected + expected
        total = PRIOR_TOKENS + self._expected
        self.acceptance_ratio = (PRIOR_TOKENS + self._accepted) / total
