"""Accepted lengths of recorded traces: the chain of best children, and cut trees."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from evict_profile.advice.lengths import AcceptedLengths
from evict_profile.stats import Bools, Floats, Ints
from evict_profile.traces import load_traces
from evict_profile.traces.resampling import Bootstrap
from evict_profile.traces.trace import check_one_temperature, check_trees

if TYPE_CHECKING:
    from evict_profile.traces import Nodes, Trace

TREE_WIDTHS = (2, 4, 8, 12, 16, 24, 32, 48, 64)


def of_trace(path: Path) -> tuple[AcceptedLengths, AcceptedLengths]:
    """The chain of each tree's best children, and the tree cut to widths.

    In a dense trace decoding continues where each way commits; else at the full tree's
    steps.
    """
    trace = load_traces(path)
    check_trees(trace)
    check_one_temperature(trace)
    nodes = trace.nodes
    deepest, most = int(nodes.depth.max()), int(trace.size.max())
    levels = range(1, deepest + 1)
    widths = [width - 1 for width in TREE_WIDTHS if width <= most] + [most]
    place = np.where(best_children(nodes), nodes.depth - 1, deepest)
    chains = _decoded(trace, place, levels)
    trees = _decoded(trace, nodes.place, widths)
    best, cut = f"best children in {path.name}", f"trees of {path.name}"
    return (
        _of_sums("chain", best, levels, levels, chains),
        _of_sums("tree", cut, widths, [deepest] * len(widths), trees),
    )


def best_children(nodes: "Nodes") -> Bools:
    chain: Bools = nodes.rank == 0
    for depth in range(2, int(nodes.depth.max(initial=1)) + 1):
        here = np.flatnonzero(nodes.depth == depth)
        chain[here] &= chain[nodes.parent[here]]
    return chain


def _decoded(trace: "Trace", place: Ints, ways: Sequence[int]) -> Floats:
    """Tokens and steps by prompt, the best nodes verified: [prompts, ways, 2]."""
    sums = np.zeros((len(trace.prompts), len(ways), 2))
    for way, drafts in enumerate(ways):
        hit = trace.nodes.accepted & (place < drafts)
        committed = 1 + np.bincount(trace.nodes.step[hit], minlength=len(trace))
        for reply, prompt in enumerate(trace.prompt):
            step, end = trace.first[reply], trace.end[reply]
            while step < end:
                sums[prompt, way] += committed[step], 1
                step += committed[step] if trace.is_dense[reply] else 1
    return sums


def _of_sums(
    kind: Literal["chain", "tree"],
    source: str,
    drafts: Sequence[int],
    levels: Sequence[int],
    sums: Floats,
) -> AcceptedLengths:
    """From committed tokens and steps by unit and way, float64 [units, ways, 2]."""
    bootstrap = Bootstrap(len(sums))
    tokens, steps = (bootstrap.sums(sums[..., part]) for part in (0, 1))
    known = steps[:, 0] > 0.0
    ratios = tokens[known] / np.maximum(steps[known], 1e-9)
    found = [bootstrap.estimate(row) for row in ratios]
    half_width = [(e.high - e.low) / 2.0 / e.value for e in found]
    return AcceptedLengths(
        kind,
        source,
        1 + np.array([0, *np.array(drafts)[known]]),
        np.array([0, *np.array(levels)[known]]),
        np.array([1.0, *(e.value for e in found)]),
        np.array([0.0, *half_width]),
        tuple(levels) if kind == "chain" else (),
    )
