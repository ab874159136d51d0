"""How many experts a layer activates as a draft tree is kept node by node.

The order is that in which nodes are kept: roots first, then the best by path
probability, over all requests of a batch. Neighbours in a tree route alike and so do
neighbours in a text, which is why uniform routing overestimates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evict_profile.calibrate.acceptance import prompt_numbers
from evict_profile.config import ModelSpec
from evict_profile.stats import Estimate, Floats, jackknife_reach
from evict_profile.table import ActivationCurve, BatchActivation
from evict_profile.traces import Reply, Step, Trace
from evict_profile.traces.trace import Routes

BATCHES = (1, 4, 16)
DRAWS = 400
"""Groups of requests drawn for a batch above one."""
Group = tuple[Sequence[int], Sequence[Step]]
"""Replies of a trace, and a step of each."""


@dataclass(frozen=True, eq=False)
class Activation:
    """U(t) of nodes as they are kept, each float64 [t + 1], t from 0.

    Low and high bound the 95 % interval over prompts; they are nan where every group of
    requests holds all prompts, which says nothing of others.
    """

    union: Floats
    low: Floats
    high: Floats

    def at(self, tokens: int) -> Estimate:
        """The union at so many tokens."""
        return Estimate(*(float(x[tokens]) for x in (self.union, self.low, self.high)))


Activations = dict[int, Activation]
"""By batch; one for which a trace has too few replies is left out."""


def measure_activation(trace: Trace, seed: int = 0) -> Activations | None:
    """Activation by a trace's trees; None where it holds no routes."""
    if any(step.routes is None for step in trace.steps):
        return None
    rng, width = np.random.default_rng(seed), tree_width(trace)
    every = [
        ((reply,), (step,))
        for reply, own in enumerate(trace.replies)
        for step in own.steps
    ]
    kept = {1: _of_groups(trace, every, width)}
    for batch in BATCHES[1:]:
        if len(trace.replies) >= batch:
            groups = [_group(trace.replies, batch, rng) for _ in range(DRAWS)]
            kept[batch] = _of_groups(trace, groups, width)
    return kept


def as_activation_curve(
    found: Activations, workload: str, model: ModelSpec, tokens: int
) -> ActivationCurve:
    """What was measured, as a table holds it, for 0..`tokens` tokens at least.

    Beyond one tree's end the curve of any tokens goes on as the largest batch's, and
    beyond that rises as uniform routing's does, where nearly all experts are active.
    """
    kept = {batch: each.union for batch, each in found.items()}
    alone, most = kept[1], kept[max(kept)]
    measured = np.concatenate([alone, most[len(alone) :]])
    last = len(measured) - 1
    further = np.array([model.uniform_union(t) for t in range(last, tokens + 1)])
    union = np.concatenate([measured, measured[-1] + further[1:] - further[:1]])
    return ActivationCurve(
        workload=workload,
        is_guess=False,
        union=_rounded(np.minimum(np.maximum.accumulate(union), model.moe.num_experts)),
        by_batch=tuple(BatchActivation(b, _rounded(kept[b])) for b in sorted(kept)),
    )


def tree_width(trace: Trace) -> int:
    """The most tokens that one tree verifies, root included."""
    most = max(len(step.parent) for step in trace.steps)
    return 1 + min(trace.about.nodes or most, most)


def kept_order(steps: Sequence[Step], width: int) -> Routes:
    """Routes of a batch's tokens in the order in which they would be kept.

    Args:
        steps: one of each request, with routes.
        width: tokens that one request verifies at most.

    Returns:
        int16 [tokens, layers, k]: roots, then nodes by falling path probability.
    """
    best = [step.best(width) for step in steps]
    pairs = list(zip(steps, best, strict=True))
    roots = [_routes(step)[:1] for step in steps]
    nodes = np.concatenate([_routes(step)[1 + kept] for step, kept in pairs])
    path_prob = np.concatenate([step.path_prob[kept] for step, kept in pairs])
    order = np.argsort(-path_prob, kind="stable")
    return np.concatenate([*roots, nodes[order]])


def union_by_tokens(routes: Routes, experts: int) -> Floats:
    """Distinct experts of the first t tokens, mean over layers.

    Args:
        routes: [tokens, layers, k].
        experts: of a layer.

    Returns:
        float64 [tokens + 1], 0 at t = 0.
    """
    tokens, layers, _ = routes.shape
    name = routes.astype(np.int64) + experts * np.arange(layers)[None, :, None]
    when = np.broadcast_to(np.arange(1, tokens + 1)[:, None, None], name.shape)
    first = np.full(layers * experts, tokens + 1)
    # Written backwards, so that what stays is where each expert was first activated.
    first[name.ravel()[::-1]] = when.ravel()[::-1]
    activated = np.bincount(first, minlength=tokens + 2)[: tokens + 1]
    union: Floats = np.cumsum(activated) / layers
    return union


def _of_groups(trace: Trace, groups: Sequence[Group], width: int) -> Activation:
    """Of steps that run together; each prompt is left out once for the interval."""
    rows = _rows(trace, [kept_order(steps, width) for _, steps in groups])
    numbers = np.array(prompt_numbers(trace.replies))
    without = np.ones((int(numbers.max()) + 1, len(groups)))
    for group, (replies, _) in enumerate(groups):
        without[numbers[list(replies)], group] = 0.0
    with np.errstate(invalid="ignore"):
        left_out = without @ rows / without.sum(axis=1, keepdims=True)
    union, reach = rows.mean(axis=0), jackknife_reach(left_out)
    return Activation(union, union - reach, union + reach)


def _rows(trace: Trace, orders: Sequence[Routes]) -> Floats:
    """A row for each order, up to the longest; one that has ended activates no more."""
    rows = np.empty((len(orders), 1 + max(map(len, orders))))
    for row, order in zip(rows, orders, strict=True):
        union = union_by_tokens(order, trace.about.experts)
        row[: len(union)], row[len(union) :] = union, union[-1]
    return rows


def _group(replies: Sequence[Reply], batch: int, rng: np.random.Generator) -> Group:
    chosen = rng.choice(len(replies), batch, replace=False).tolist()
    return chosen, [
        replies[i].steps[rng.integers(len(replies[i].steps))] for i in chosen
    ]


def _routes(step: Step) -> Routes:
    assert step.routes is not None, "activation is measured where every step has routes"
    return step.routes


def _rounded(union: Floats) -> tuple[float, ...]:
    return tuple(np.round(union, 3).tolist())
