"""What drafting adds to a step: measured, given, or assumed, and said so.

An assumed level of drafting costs as much as one of the target's own MoE layers and its
head, on one token a request. That is what a multi-token-prediction head runs; the head
of EAGLE-3 runs a dense layer and a smaller vocabulary, and should cost less.
"""

from collections.abc import Sequence

import numpy as np

from evict_profile.config.sweep import LLAMA_CPP
from evict_profile.cost_model import features_at
from evict_profile.errors import ConfigError
from evict_profile.records import differences, replace
from evict_profile.stats import Floats
from evict_profile.table import CostTable, DraftClock, Drafting, measured
from evict_profile.table.overheads import LEVELS

ASSUMED = (
    "ASSUMED: a level costs as one of the target's layers and its head, as a "
    "multi-token-prediction head would; give yours with --draft-level-ms"
)
"""The workload of drafting that nobody measured."""

MAX_LEVEL_MS = 1_000.0
SAME_FACTS = ("device", "clock", "threads", "engine_version", "library_sha256")
"""Of a target's and a draft's table, for their times to be added."""


def over_plain(
    cost_us: Floats,
    batch: int,
    width: int,
    clock: DraftClock | None = None,
    levels: int = 0,
) -> float | None:
    """A step of `width` tokens a request over plain decoding's, by costs of all tokens.

    C(n)/C(1), or with a clock the same of served steps that draft so many levels. None
    where the costs do not cover so many tokens.
    """
    if width * batch >= len(cost_us):
        return None
    beside_us, plain_beside_us = (
        clock.overhead_us(depth) if clock else 0.0 for depth in (levels, 0)
    )
    step_us = cost_us[width * batch] + beside_us
    return float(step_us / (cost_us[batch] + plain_beside_us))


def drafting_of(
    table: CostTable,
    level_ms: float | None = None,
    draft_table: CostTable | None = None,
    context: float = 0.0,
) -> Drafting:
    """What a step takes beside verification at the batches of a table as served.

    By the draft model's own table, of llama.cpp; or by the time to draft one level,
    where the step's rest stays as the table knows it.
    """
    batches, engine = table.axes.batch, table.key.engine
    if draft_table is not None:
        _check_draft(table, draft_table, level_ms)
        clocks = (_of_model(table, draft_table, batch, context) for batch in batches)
        said = f"forwards of {draft_table.key.model}, by its own table"
        return Drafting(said, engine, tuple(clocks))
    if level_ms is not None:
        return _of_level(table, level_ms)
    return table.drafting or assumed_drafting(table, batches, context)


def _of_level(table: CostTable, level_ms: float) -> Drafting:
    if not 0.0 <= level_ms <= MAX_LEVEL_MS:
        raise ConfigError(
            f"--draft-level-ms {level_ms:g} is no time of one level; give "
            f"milliseconds from 0 to {MAX_LEVEL_MS:g}"
        )
    rest = [DraftClock(batch, (0.0,), 0.0, 0.0) for batch in table.axes.batch]
    levels = tuple((1e3 * level_ms * np.arange(LEVELS + 1)).tolist())
    known = table.drafting.batches if table.drafting else rest
    clocks = tuple(replace(clock, draft_us=levels) for clock in known)
    said = f"given, {level_ms:g} ms a level at every batch"
    return Drafting(said, table.key.engine, clocks)


def _of_model(
    target: CostTable, draft: CostTable, batch: int, context: float
) -> DraftClock:
    """n D(1) + D(n + 1) by n, and two graphs.

    llama.cpp decodes n drafts one by one, and after verification all n + 1 tokens in
    one forward; both follow a forward of another width, so each builds a graph. A
    table has the times at its machine's most frequent speed, which beside neighbours
    differs by model and run: what counts is the draft's average over the target's.
    """
    forward_us = draft.costs(batch, context).step_cost_us
    levels = np.arange(1, (len(forward_us) - 1) // batch)
    us = levels * forward_us[batch] + forward_us[batch * (levels + 1)]
    ours, theirs = measured(target.provenance), measured(draft.provenance)
    slower = theirs.slow_times / ours.slow_times
    graphs_us = 2.0 * slower * (theirs.new_graph_us or 0.0)
    # A deeper draft never takes less, whatever noise is in a staircase.
    draft_us = (0.0, *np.maximum.accumulate(slower * us).tolist())
    return DraftClock(batch, draft_us, graphs_us, 0.0)


def assumed_drafting(
    table: CostTable, batches: Sequence[int], context: float
) -> Drafting:
    """The assumed times of drafting at batches; nothing else beside verification."""
    levels, clocks = np.arange(LEVELS + 1.0), []
    for batch in batches:
        draft_us = (levels * _own_layer_us(table, batch, context)).tolist()
        clocks.append(DraftClock(batch, tuple(draft_us), 0.0, 0.0))
    return Drafting(ASSUMED, table.key.engine, tuple(clocks))


def _check_draft(target: CostTable, draft: CostTable, level_ms: float | None) -> None:
    if level_ms is not None:
        raise ConfigError("give --draft-level-ms or --draft-table, not both")
    for table in (target, draft):
        if table.key.engine != LLAMA_CPP:
            raise ConfigError(
                f"{table.path}: a table of {table.key.engine}; --draft-table adds the "
                "forwards of a draft's GGUF to its model's, both of the runner "
                "llama_cpp: give --draft-level-ms"
            )
        if getattr(table.provenance, "new_graph_us", None) is None:
            raise ConfigError(
                f"{table.path}: measured before building graphs was told apart from "
                f"forwards; profile {table.key.model} again"
            )
    ours, theirs = (
        {name: table.provenance.fingerprint.get(name) for name in SAME_FACTS}
        for table in (target, draft)
    )
    again = f"profile {draft.key.model} as {target.key.model} was profiled"
    if differs := differences(ours, theirs):
        raise ConfigError(
            f"{draft.path}: measured otherwise than the model ({'; '.join(differs)}), "
            f"and times of two machines cannot be added; {again}"
        )
    if draft.max_tokens(1) < target.max_tokens(1):
        raise ConfigError(
            f"{draft.path}: covers up to {draft.max_tokens(1)} tokens, and the model's "
            f"table up to {target.max_tokens(1)}, which the draft reads again; {again}"
        )


def _own_layer_us(table: CostTable, batch: int, context: float) -> float:
    cost, one = table.cost, np.array([float(batch)])
    union = table.activation.at(one, batch)
    features = features_at(cost.shape, one, union, np.array([context]), one)
    layers = cost.layers.latency_us(features)[0] / table.fit.measured_layers
    return float(layers + cost.non_moe.latency_us(features)[0])
