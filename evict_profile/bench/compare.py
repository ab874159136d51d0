"""How much each truncation rule earns, by shape of cost and difficulty of text.

Three questions of the runtime's rule. How much of a gain over a full tree would any
good fixed width have brought (compare with the best one, chosen in hindsight)? What
does looking past the step at hand add to EVICT's ratio? And how far is it from the
best that can be done with these trees before they are verified?
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np

from evict_profile.bench.contest import (
    BEST_FIXED,
    RATE_AT_OPTIMUM,
    RATIO,
    Contest,
    Score,
)
from evict_profile.bench.interval import Interval, student_interval
from evict_profile.bench.mixes import BURST_STEPS, MIXES, Mix
from evict_profile.bench.shapes import CostShape, cost_shapes
from evict_profile.bench.trees import MOST_NODES
from evict_profile.errors import ConfigError

TREE_NODES = (31, MOST_NODES)
"""Nodes beside the root: 32 tokens verified in all is what engines ship with."""
BASELINES = (BEST_FIXED, RATIO, RATE_AT_OPTIMUM)
FEWEST_STEPS = sum(BURST_STEPS)


@dataclass(frozen=True)
class Row:
    """One policy at one mix, shape and tree size; means over seeds.

    `over` holds its throughput over that of each baseline on the same trees.
    """

    mix: str
    shape: str
    nodes: int
    policy: str
    over: dict[str, Interval]
    tokens_per_ms: float
    tokens_per_step: float
    width: float


def compare_shapes(
    seeds: int, steps: int, progress: Callable[[str], None] | None
) -> dict[str, Any]:
    """Run every policy on every mix, shape and tree size.

    Args:
        seeds: independent simulations, two at the least.
        steps: steps of each; FEWEST_STEPS at the least.
        progress: told of each mix before it runs.

    Returns:
        A JSON-able dict. `seeds`, `steps`: the settings. `shapes`: name, `decode_us`
        (plain decoding) and `step_us` (for t = 1, 2, ...) of each. `rows`: the fields
        of `Row`, one for each mix, shape, tree size and policy.

    Raises:
        ConfigError: too few seeds or steps.
    """
    if seeds < 2 or steps < FEWEST_STEPS:
        raise ConfigError(
            f"{seeds} seeds of {steps} steps are too few; give 2 or more, "
            f"of {FEWEST_STEPS} or more"
        )
    rows: list[Row] = []
    for mix in MIXES:
        if progress:
            progress(f"{mix.name}: {seeds} simulations of {steps} steps")
        rows.extend(_rows(mix, seeds, steps))
    return {
        "seeds": seeds,
        "steps": steps,
        "shapes": [_described(shape) for shape in cost_shapes()],
        "rows": [asdict(row) for row in rows],
    }


def _rows(mix: Mix, seeds: int, steps: int) -> Iterator[Row]:
    places = tuple(product(TREE_NODES, cost_shapes()))
    scores: list[list[dict[str, Score]]] = [[] for _ in places]
    for seed in range(seeds):
        workload = mix.draw(seed, steps)
        trees = {nodes: workload.cut(nodes) for nodes in TREE_NODES}
        for (nodes, shape), found in zip(places, scores, strict=True):
            found.append(Contest(trees[nodes], shape).scores())
    for (nodes, shape), found in zip(places, scores, strict=True):
        for policy in found[0]:
            yield _row(mix, shape, nodes, policy, found)


def _row(
    mix: Mix, shape: CostShape, nodes: int, policy: str, scores: list[dict[str, Score]]
) -> Row:
    own = [each[policy] for each in scores]
    over = {
        baseline: student_interval(
            [each[baseline].us_per_token / each[policy].us_per_token for each in scores]
        )
        for baseline in BASELINES
    }
    return Row(
        mix=mix.name,
        shape=shape.name,
        nodes=nodes,
        policy=policy,
        over=over,
        tokens_per_ms=float(np.mean([1e3 / each.us_per_token for each in own])),
        tokens_per_step=float(np.mean([each.tokens_per_step for each in own])),
        width=float(np.mean([each.width for each in own])),
    )


def _described(shape: CostShape) -> dict[str, Any]:
    return {
        "name": shape.name,
        "decode_us": shape.decode_us,
        "step_us": shape.step_us[1:].tolist(),
    }
