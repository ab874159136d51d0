"""Activated experts of a layer: by tokens kept of a trace, roots, then the best nodes;
or by committed tokens of a server's replies.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evict_profile.config import ModelSpec
from evict_profile.errors import ConfigError
from evict_profile.records import parse, read_mapping
from evict_profile.runtime.learning import ForwardParts, Learnt, grown
from evict_profile.served.probe.record import Probed, RoutedExperts, read_lines
from evict_profile.stats import Estimate, Floats, Ints
from evict_profile.table import ActivationCurve, BatchActivation, CostTable
from evict_profile.traces import Trace
from evict_profile.traces.resampling import jackknife_half_width
from evict_profile.traces.trace import Routes, ranges
from evict_profile.unions import union_by_tokens

BATCHES = (1, 4, 16)
DRAWS = 400


@dataclass(frozen=True, eq=False)
class Activation:
    """U(t), each float64 [t + 1]; NaN intervals where all groups have all prompts."""

    union: Floats
    low: Floats
    high: Floats

    def at(self, tokens: int) -> Estimate:
        return Estimate(*(float(x[tokens]) for x in (self.union, self.low, self.high)))


Activations = dict[int, Activation]
"""By batch; a batch above the number of replies is left out."""


def measure_activation(trace: Trace, seed: int = 0) -> Activations | None:
    if trace.routes is None:
        return None
    rng = np.random.default_rng(seed)
    kept = {1: _of_groups(trace, list(np.arange(len(trace))[:, None]))}
    for batch in BATCHES[1:]:
        if len(trace.replies) >= batch:
            groups = [_group(trace, batch, rng) for _ in range(DRAWS)]
            kept[batch] = _of_groups(trace, groups)
    return kept


def routed_curve(probes: Iterable[Path], table: CostTable) -> ActivationCurve | None:
    """Activation by committed tokens, of the last line with routes, if any has some."""
    text, seen, last = "", None, ""
    for line in (line for path in probes for line in read_lines(path)):
        if isinstance(line, Probed):
            text = line.text
        elif isinstance(line, RoutedExperts):
            seen, last = line, text
    if seen is None:
        return None
    model = table.model
    shape, given = (seen.top_k, len(seen.layers)), (model.moe.top_k, model.moe_layers)
    if shape != given:
        raise ConfigError(
            f"routes are of {shape[1]} layers with {shape[0]} experts a token, and "
            f"{model.name} has {given[1]} with {given[0]}; give the table of the server"
        )
    workload = f"committed tokens, {last}: {seen.tokens:,} of {seen.replies:,} replies"
    kept = {1: seen.union} | {b.batch: np.array(b.union) for b in seen.batches}
    return as_activation_curve(kept, workload, model, table.axes.max_tokens)


def learnt_curve(state: Path, table: CostTable) -> ActivationCurve:
    """Activation by tokens as the steps of a server showed it (`runtime.learning`).

    The growth of cost over that of uniform routing is taken for the share of unions: a
    table's cost is nearly linear in the union.

    Raises:
        ConfigError: the file was learnt with another table, or on another machine.
    """
    learnt = parse(Learnt, read_mapping(state), str(state))
    if learnt.table_sha256 != table.sha256:
        raise ConfigError(
            f"{state}: was learnt with another table than {table.path}; give the one "
            "that served"
        )
    if learnt.is_other:
        raise ConfigError(
            f"{state}: holds times of another machine than that of {table.path}, from "
            "which no unions follow; sweep the machine, and serve with its table"
        )
    parts = ForwardParts.of(table, 1, min(table.axes.context))
    growth_us, uniform_us = grown(parts, learnt.growth), parts.uniform
    share = np.divide(
        growth_us, uniform_us, np.zeros(len(uniform_us)), where=uniform_us > 0
    )
    model = table.model
    beyond = [
        max(model.uniform_union(t) - model.moe.top_k, 0.0) for t in range(len(share))
    ]
    union = np.maximum.accumulate(model.moe.top_k + share * np.array(beyond))
    union[0] = 0.0
    workload = f"learnt from {learnt.steps:,} verifications of a server"
    most = np.minimum(union, model.moe.num_experts)
    return as_activation_curve({1: most}, workload, model, table.axes.max_tokens)


def as_activation_curve(
    kept: Mapping[int, Floats], workload: str, model: ModelSpec, tokens: int
) -> ActivationCurve:
    """A table's curve; beyond a tree by the largest batch, then by uniform routing."""
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
    most = int(trace.size.max())
    return 1 + min(trace.about.nodes or most, most)


def kept_order(trace: Trace, steps: Ints) -> Routes:
    """Routes, int16 [tokens, layers, k]: roots, then nodes, the most probable first."""
    assert trace.routes is not None, "activation is measured where there are routes"
    nodes, root = trace.nodes, trace.root[steps]
    places = ranges(root - steps, trace.size[steps])
    places = places[nodes.place[places] < tree_width(trace) - 1]
    best = places[np.argsort(-nodes.path_prob[places], kind="stable")]
    # The roots of a node's step and of those before it stand before the node.
    rows = np.concatenate([root, best + nodes.step[best] + 1])
    ordered: Routes = trace.routes[rows]
    return ordered


def _of_groups(trace: Trace, groups: Sequence[Ints]) -> Activation:
    rows = _rows(trace, [kept_order(trace, steps) for steps in groups])
    without = np.ones((len(trace.prompts), len(groups)))
    for group, steps in enumerate(groups):
        without[trace.prompt[trace.reply[steps]], group] = 0.0
    with np.errstate(invalid="ignore"):
        left_out = without @ rows / without.sum(axis=1, keepdims=True)
    union, reach = rows.mean(axis=0), jackknife_half_width(left_out)
    return Activation(union, union - reach, union + reach)


def _rows(trace: Trace, orders: Sequence[Routes]) -> Floats:
    rows = np.empty((len(orders), 1 + max(map(len, orders))))
    for row, order in zip(rows, orders, strict=True):
        union = union_by_tokens(order, trace.about.experts)
        row[: len(union)], row[len(union) :] = union, union[-1]
    return rows


def _group(trace: Trace, batch: int, rng: np.random.Generator) -> Ints:
    replies = rng.choice(len(trace.replies), batch, replace=False)
    size = trace.end - trace.first
    steps = [trace.first[reply] + rng.integers(size[reply]) for reply in replies]
    return np.array(steps)


def _rounded(union: Floats) -> tuple[float, ...]:
    return tuple(np.round(union, 3).tolist())
