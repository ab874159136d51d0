"""The time of drafting that a user gives: of a level, or a draft model's own table."""

import numpy as np

from evict_profile.config.sweep import LLAMA_CPP
from evict_profile.errors import ConfigError
from evict_profile.records import differences, replace
from evict_profile.table import CostTable, DraftClock, Drafting, ServedStep, measured
from evict_profile.table.overheads import LEVELS

MAX_LEVEL_MS = 1_000.0
SAME_FACTS = ("device", "clock", "threads", "engine_version", "library_sha256")


def drafting_of(
    served: ServedStep,
    level_ms: float | None = None,
    draft_table: CostTable | None = None,
    context: float = 0.0,
) -> Drafting:
    """Time of a step beside its forward, as given; else the served step's.

    A draft model's table of llama.cpp, or the time of one level with the known rest.
    """
    table = served.table
    if draft_table is not None:
        _check_draft(table, draft_table, level_ms)
        batches = table.axes.batch
        clocks = (_of_model(table, draft_table, batch, context) for batch in batches)
        said = f"forwards of {draft_table.key.model}, by its own table"
        return Drafting(said, table.key.engine, tuple(clocks))
    return served.drafting if level_ms is None else _of_level(table, level_ms)


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

    llama.cpp decodes n drafts one by one and, after verification, all n + 1 tokens in
    one forward; both follow a forward of another width and build a graph. Tables are at
    the usual speed, so the draft's average over the target's is applied.
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
                f"{table.path}: measured before building graphs was separated from "
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
