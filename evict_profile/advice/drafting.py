"""What drafting adds to a step: measured, given, or assumed, and said so.

An assumed level of drafting costs as much as one of the target's own MoE layers and its
head, on one token a request. That is what a multi-token-prediction head runs; the head
of EAGLE-3 runs a dense layer and a smaller vocabulary, and should cost less.
"""

from dataclasses import dataclass

import numpy as np

from evict_profile.cost_model import features_at
from evict_profile.errors import ConfigError
from evict_profile.table import CostTable

MAX_LEVEL_MS = 1_000.0


@dataclass(frozen=True)
class DraftCost:
    """Time of a step beside verification.

    Attributes:
        table: what was measured of drafting, and what is assumed, come from it.
        level_ms: time to draft one level, where it was given.

    Raises:
        ConfigError: a time that no level takes.
    """

    table: CostTable
    level_ms: float | None = None

    def __post_init__(self) -> None:
        if self.level_ms is not None and not 0.0 <= self.level_ms <= MAX_LEVEL_MS:
            raise ConfigError(
                f"--draft-level-ms {self.level_ms:g} is no time of one level; give "
                f"milliseconds from 0 to {MAX_LEVEL_MS:g}"
            )

    def us(self, batch: int, levels: int, context: float) -> float:
        """Microseconds beside verification where so many levels are drafted."""
        if self.level_ms is not None:
            return 1e3 * self.level_ms * levels
        if self.table.drafting:
            return self.table.drafting.at(batch).overhead_us(levels)
        return levels * _own_layer_us(self.table, batch, context)

    def __str__(self) -> str:
        if self.level_ms is not None:
            return f"given, {self.level_ms:g} ms a level at every batch"
        if self.table.drafting:
            return f"measured on {self.table.drafting.workload}, with the step's rest"
        return (
            "ASSUMED: a level costs as one of the target's layers and its head, as a "
            "multi-token-prediction head would; give yours with --draft-level-ms"
        )


def _own_layer_us(table: CostTable, batch: int, context: float) -> float:
    cost, one = table.cost, np.array([float(batch)])
    union = table.activation.at(one, batch)
    features = features_at(cost.shape, one, union, np.array([context]), one)
    layers = cost.layers.latency_us(features)[0] / table.fit.measured_layers
    return float(layers + cost.non_moe.latency_us(features)[0])
