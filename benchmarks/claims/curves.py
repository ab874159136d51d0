"""The cost curve C(n) of texts: each has a union growth U(n) of its own.

EVICT's notes compare the curves of two workloads: a mean difference of 5.84 %.
"""

from collections.abc import Iterator

import numpy as np

from benchmarks.claims.evict import Row, plainly
from benchmarks.claims.worlds import World
from evict_profile.calibrate.activation import kept_order
from evict_profile.stats import Bootstrap, Estimate, Floats
from evict_profile.traces import Trace
from evict_profile.unions import union_by_tokens

WIDTHS = np.arange(1, 33)
PAPER = "5.84 % [N]"


def curves(world: World, warm: World) -> Iterator[Row]:
    """How far the curves of two texts lie apart, and how far each rises."""
    own = {"code": world.whole.only(["code"]), "prose": world.whole.only(["prose"])}
    own["prose, T=1"] = warm.whole.only(["prose"])
    cost = {name: cost_curve(world, trace) for name, trace in own.items()}
    for other in ("prose", "prose, T=1"):
        apart = np.abs(cost[other] / cost["code"] - 1.0).mean(axis=0)
        shown = plainly(estimate(own["code"], 100.0 * apart), ".1f")
        yield Row("apart in the mean, n = 1..32", PAPER, f"{shown} %", f"code, {other}")
    for name, trace in own.items():
        rise = plainly(estimate(trace, cost[name][-1] / cost[name][0]))
        yield Row("C(32) / C(1), verification", "1.62 [N]", rise, name)


def cost_curve(world: World, trace: Trace) -> Floats:
    """C(n) of the mean union of the best nodes, float64 [widths, 1 + resamples]."""
    steps = np.arange(len(trace))
    unions = np.stack([_union(trace, int(step)) for step in steps])
    prompt = trace.prompt[trace.reply]
    rows = np.column_stack([unions, np.ones(len(steps))])
    by_prompt = np.stack([rows[prompt == p].sum(axis=0) for p in np.unique(prompt)])
    *union, count = Bootstrap(len(by_prompt)).sums(by_prompt)
    context = float(np.clip(trace.context.mean(), *world.base.fit.domain["context"]))
    return np.stack(
        [
            world.base.cost.latency_us(np.full(len(u), n), u / count, context, 1.0)
            for n, u in zip(WIDTHS, union, strict=True)
        ]
    )


def _union(trace: Trace, step: int) -> Floats:
    """Distinct experts of the best 1..32 tokens of a tree, mean over layers."""
    kept = kept_order(trace, np.array([step]))[: WIDTHS[-1]]
    union = union_by_tokens(kept, trace.about.experts)[1:]
    return np.pad(union, (0, len(WIDTHS) - len(union)), mode="edge")


def estimate(trace: Trace, values: Floats) -> Estimate:
    return Bootstrap(len(trace.prompts)).estimate(values)
