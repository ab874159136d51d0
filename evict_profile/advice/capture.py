"""The CUDA graphs of an advised schedule: a step runs in the smallest that holds it, at
the cost of that one, and beyond the largest without any."""

import math
from collections.abc import Iterator, Sequence
from typing import TypeGuard

from evict_profile.advice.plan import DraftPlan, Range
from evict_profile.advice.steps import OfTable, Steps
from evict_profile.errors import ConfigError

WORTH = 0.05
"""Part by which a step may be longer than in a graph of its own."""

FLAGS = {"sglang": "--cuda-graph-bs-decode", "vllm": "--cudagraph-capture-sizes"}
"""SGLang captures numbers of requests, vLLM numbers of tokens."""


def to_capture(advised: Sequence[Range], steps: Steps, engine: str) -> Iterator[str]:
    """The graphs to capture by a sweep of graphs, and what leaving each out loses."""
    if not (_of_graphs(steps) and any(each.drafts for each in advised)):
        return
    found = [(each.drafts, _worth(each, steps)) for each in advised]
    for name in [engine] if engine in FLAGS else FLAGS:
        sizes = {b * _unit(name, k) for k, worth in found for b in worth}
        flag = " ".join(map(str, (FLAGS[name], *sorted(sizes))))
        yield f"With {flag} no step is {WORTH:.0%} longer than in a graph of its own."
    lost = sorted(pair for _, worth in found for pair in worth.items())
    each = [f"{loss:.0%} (batch {b})" for b, loss in lost if math.isfinite(loss)]
    if each:
        yield f"Without its graph a step is longer by up to {', '.join(each)}."
    for width in sorted({1 + k for k, _ in found} - {*steps.table.axes.capture_sizes}):
        yield (
            f"The sweep captured no graph of {width} tokens a request: K = {width - 1} "
            "has the cost of its next larger one."
        )


def check_captured(
    sizes: Sequence[int], plan: DraftPlan, steps: Steps, engine: str
) -> None:
    """Refuse a plan if a step of its traffic has no graph, or one that is too large.

    vLLM rounds each size up to whole requests, and drops it if that is beyond the last.
    """
    if steps.estimated:
        raise ConfigError("--captured: an estimate chooses no K to check; leave it out")
    for batch in sorted(plan.traffic) if plan.advised else ():
        drafts = plan.drafts_at(batch)
        unit = _unit(engine, drafts)
        whole = {-(-size // unit) for size in sizes}
        holds = [b for b in whole if b >= batch and b * unit <= max(sizes)]
        if holds and _longer(steps, batch, drafts, min(holds)) <= WORTH:
            continue
        within = f" in at most {WORTH:.0%} more time" * bool(holds)
        raise ConfigError(
            f"--captured: K = {drafts} at batch {batch} verifies "
            f"{batch * (1 + drafts)} tokens, and no graph holds them{within}; add "
            f"{batch * unit} to {FLAGS.get(engine, 'the sizes')}"
        )


def _unit(engine: str, drafts: int) -> int:
    return 1 if engine == "sglang" else 1 + drafts


def _of_graphs(steps: Steps) -> TypeGuard[OfTable]:
    return isinstance(steps, OfTable) and bool(steps.table.axes.capture_sizes)


def _worth(each: Range, steps: Steps) -> dict[int, float]:
    """The batches to capture, and by how much a step is longer without one at most.

    That is infinite of the largest.
    """
    kept, above = {each.last: math.inf}, each.last
    for batch in range(each.last - 1, max(each.first, steps.batches()[0]) - 1, -1):
        if _longer(steps, batch, each.drafts, min(kept)) > WORTH:
            above = min(kept)
            kept[batch] = 0.0
        loss = _longer(steps, batch, each.drafts, above)
        kept[min(kept)] = max(kept[min(kept)], loss)
    return kept


def _longer(steps: Steps, batch: int, drafts: int, graph: int) -> float:
    """The part by which a step is longer in a graph of more requests.

    It is infinite beyond what the table covers, and 0 where none knows it.
    """
    if not _of_graphs(steps):
        return 0.0
    served, n = steps.served, 1 + drafts
    us = served.unpadded.steps_us(batch, drafts, steps.context)
    return (
        float(us[graph * n] / us[batch * n]) - 1.0 if graph * n < len(us) else math.inf
    )
