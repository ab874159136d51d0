"""What drafting adds to a step: measured, given, or assumed, and said so.

llama.cpp's draft model, where it is a GGUF of its own, has a table of its own. A step
decodes n drafts one by one, and after verification all n + 1 tokens in one forward:
n D(1) + D(n + 1). Both follow a forward of another width, so each builds a graph.
Either table tells times at the speed that its machine had most. Beside neighbours a
small model has other speeds than a large one, and which was the more frequent differs
from run to run: what is added up is the draft's average over the target's.

An assumed level of drafting costs as much as one of the target's own MoE layers and its
head, on one token a request. That is what a multi-token-prediction head runs; the head
of EAGLE-3 runs a dense layer and a smaller vocabulary, and should cost less.
"""

from dataclasses import dataclass

import numpy as np

from evict_profile.config.sweep import LLAMA_CPP
from evict_profile.cost_model import features_at
from evict_profile.errors import ConfigError
from evict_profile.records import differences
from evict_profile.table import CostTable, DraftClock, Drafting, measured

ASSUMED = "assumed: a level as one of the target's layers and its head"
"""The workload of drafting that nobody measured."""

MAX_LEVEL_MS = 1_000.0
SAME_FACTS = ("device", "clock", "threads", "engine_version", "library_sha256")
"""Of a target's and a draft's table, for their times to be added."""


@dataclass(frozen=True)
class DraftCost:
    """Time of a step beside verification.

    Attributes:
        table: what was measured of drafting, and what is assumed, come from it.
        level_ms: time to draft one level, where it was given.
        draft: the draft model's own table, of llama.cpp, where there is one.

    Raises:
        ConfigError: a time that no level takes, both, or a table whose times cannot be
            added to this one's.
    """

    table: CostTable
    level_ms: float | None = None
    draft: CostTable | None = None

    def __post_init__(self) -> None:
        if self.draft is not None:
            _check_draft(self.table, self.draft, self.level_ms)
        if self.level_ms is not None and not 0.0 <= self.level_ms <= MAX_LEVEL_MS:
            raise ConfigError(
                f"--draft-level-ms {self.level_ms:g} is no time of one level; give "
                f"milliseconds from 0 to {MAX_LEVEL_MS:g}"
            )

    def us(self, batch: int, levels: int, context: float) -> float:
        """Microseconds beside verification where so many levels are drafted."""
        if self.level_ms is not None:
            return 1e3 * self.level_ms * levels
        if self.draft is not None:
            return self._draft_model_us(self.draft, batch, levels, context)
        if self.table.drafting:
            return self.table.drafting.at(batch).overhead_us(levels)
        return levels * _own_layer_us(self.table, batch, context)

    def _draft_model_us(
        self, draft: CostTable, batch: int, levels: int, context: float
    ) -> float:
        if not levels:
            return 0.0
        forward_us = draft.price(batch, context).step_cost_us
        read_us = forward_us[batch * (levels + 1)] + 2.0 * new_graph_us(draft)
        ours, theirs = measured(self.table.provenance), measured(draft.provenance)
        slower = theirs.slow_times / ours.slow_times
        return slower * float(levels * forward_us[batch] + read_us)

    def __str__(self) -> str:
        if self.level_ms is not None:
            return f"given, {self.level_ms:g} ms a level at every batch"
        if self.draft is not None:
            return f"forwards of {self.draft.key.model}, by its own table"
        if self.table.drafting:
            return f"measured on {self.table.drafting.workload}, with the step's rest"
        return (
            "ASSUMED: a level costs as one of the target's layers and its head, as a "
            "multi-token-prediction head would; give yours with --draft-level-ms"
        )


def assumed_drafting(
    table: CostTable, batch: int, levels: int, context: float
) -> Drafting:
    """The assumed times of drafting at a batch; nothing else beside verification."""
    level_us = _own_layer_us(table, batch, context)
    clock = DraftClock(batch, tuple(level_us * d for d in range(levels + 1)), 0.0, 0.0)
    return Drafting(ASSUMED, table.key.engine, (clock,))


def new_graph_us(table: CostTable) -> float:
    """What a forward of another width than the last one's takes beyond its price."""
    return getattr(table.provenance, "new_graph_us", None) or 0.0


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
            f"{draft.path}: prices up to {draft.max_tokens(1)} tokens, and the model's "
            f"table up to {target.max_tokens(1)}, which the draft reads again; {again}"
        )


def _own_layer_us(table: CostTable, batch: int, context: float) -> float:
    cost, one = table.cost, np.array([float(batch)])
    union = table.activation.at(one, batch)
    features = features_at(cost.shape, one, union, np.array([context]), one)
    layers = cost.layers.latency_us(features)[0] / table.fit.measured_layers
    return float(layers + cost.non_moe.latency_us(features)[0])
