"""`select_widths`: verify widths from path probabilities and step costs alone."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from evict_profile.errors import PlanError
from evict_profile.runtime import decision_cpu, decision_gpu
from evict_profile.runtime.checks import number, sizes
from evict_profile.runtime.decision import (
    Allocation,
    Objective,
    Rule,
    Terms,
    reachable_costs,
)
from evict_profile.stats import Floats

READ_AS_THEY_ARE = "fd"
"""Floats of 32 and 64 bits, as numpy names them."""


def select_widths(
    path_prob: Tensor,
    cost_us: Floats | Tensor,
    objective: Objective = "ratio",
    ladder: Sequence[int] | None = None,
    allocation: Allocation = "batch",
    rate: float | None = None,
) -> Tensor:
    """The verify width of each request, int64 [B], on the device of `path_prob`.

    Optimal over all ancestor-closed sets of nodes; ties keep the smaller width.

    Args:
        path_prob: floats [B, N], root excluded; nodes in any order in which a parent
            stands before a child of the same probability; padding is 0.
        cost_us: [T + 1], on the host; cost_us[t] is the cost of a step that verifies
            t tokens in all, as `CostTable.step_cost_us` gives it.
        objective: "ratio" maximises committed tokens over cost in this step (EVICT);
            "rate" maximises committed tokens - rate * cost.
        ladder: totals that the engine can run, or widths when uniform.
        allocation: "batch" lets all requests' nodes compete; "uniform" gives every
            request the same width.
        rate: long-run tokens a microsecond, which "rate" needs.

    Raises:
        PlanError: probabilities, costs, ladder or rate that cannot be used. On a GPU
            bad probabilities cannot raise without a sync; all is verified instead.
    """
    check_shape(path_prob)
    rule = Rule(objective, allocation)
    terms = Terms(rate=needed_rate(objective, rate))
    batch, nodes = path_prob.shape
    rungs = sizes("ladder", ladder)
    costs = reachable_costs(_as_costs(cost_us), batch, nodes, rule, rungs)
    if path_prob.is_cuda:
        on_it = torch.from_numpy(costs).to(path_prob.device, non_blocking=True)
        terms_there = decision_gpu.on_its_device(terms, path_prob.device)
        return decision_gpu.decide(path_prob, on_it, rule, terms_there).widths
    _, widths, _, _ = decision_cpu.decide(as_numpy(path_prob), costs, rule, terms)
    return torch.from_numpy(widths)


def check_shape(path_prob: Tensor) -> None:
    """Refuse what is no tensor [B, N] of floats.

    Raises:
        PlanError: no tensor, another shape, no request, or another kind of number.
    """
    if not isinstance(path_prob, Tensor):
        raise PlanError(f"path_prob is a {type(path_prob).__name__}; give a tensor")
    if path_prob.ndim != 2 or not path_prob.shape[0]:
        raise PlanError(
            f"path_prob has shape {list(path_prob.shape)}; give [requests, nodes] with "
            "at least one request"
        )
    if not path_prob.is_floating_point():
        raise PlanError(f"path_prob is {path_prob.dtype}; give floating point numbers")


def _as_costs(cost_us: Floats | Tensor) -> Floats:
    try:
        found: Floats = np.asarray(cost_us, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PlanError(f"cost_us holds no numbers on the host: {error}") from error
    if found.ndim != 1:
        raise PlanError(f"cost_us has {found.ndim} dimensions; give one, [tokens + 1]")
    return found


def needed_rate(objective: Objective, rate: float | None) -> float:
    """The rate that an objective needs; 0 for one that needs none.

    Raises:
        PlanError: "rate" without a rate, or with one that is negative or NaN.
    """
    if objective != "rate":
        return 0.0
    if rate is None:
        raise PlanError(
            "objective 'rate' needs the long-run tokens a microsecond; give rate=, or "
            "use a Truncator, which learns from its past"
        )
    return number("rate", rate)


def as_numpy(path_prob: Tensor) -> decision_cpu.Probabilities:
    """Floats [B, N]: the tensor's own memory where numpy knows its type, else float32.

    Raises:
        PlanError: see `check_shape`.
    """
    # The view is asked what it is, because a tensor takes thrice as long to answer.
    try:
        shown = path_prob.numpy()
        if shown.ndim == 2 and len(shown) and shown.dtype.char in READ_AS_THEY_ARE:
            return shown
    except (AttributeError, RuntimeError, TypeError):
        pass  # no tensor, one that has gradients, or bfloat16
    check_shape(path_prob)
    own = path_prob.detach()
    return (own if own.dtype == torch.float64 else own.float()).numpy()
