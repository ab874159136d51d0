"""Latency of a served step that verifies n tokens a request and drafts L levels.

`ServedStep` adds drafting to the table's forward. Where a table does not know it, a
level is assumed to take one of the target's layers and its head, as a
multi-token-prediction head runs. EAGLE-3's dense layer should take less.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np

from evict_profile.cost_model import features_at
from evict_profile.errors import DataError
from evict_profile.records import replace
from evict_profile.stats import Estimate
from evict_profile.table.cost_table import CostTable, Outside
from evict_profile.table.key import Caveats
from evict_profile.table.parts import StepCosts
from evict_profile.table.workload import DraftClock, Drafting

ASSUMED = (
    "ASSUMED: a level costs as one of the target's layers and its head, as a "
    "multi-token-prediction head would; give yours with --draft-level-ms"
)
LEVELS = 32
"""Drafted levels in an assumed clock; deeper ones take as long as the last."""

CACHE_SIZE = 2048


@dataclass(frozen=True, eq=False)
class ServedStep:
    """The time of a step where a table's engine serves.

    `outside` says what to do with a place that is not covered: "refuse" or "clamp".
    """

    table: CostTable
    drafting: Drafting
    outside: Outside = "refuse"

    @classmethod
    def of(
        cls,
        table: CostTable,
        drafting: Drafting | None = None,
        context: float | None = None,
    ) -> "ServedStep":
        """`drafting` replaces the table's; `context` is by default its smallest."""
        if drafting:
            table = replace(table, drafting=drafting)
        at = min(table.axes.context) if context is None else context
        return cls(table, table.drafting or _assumed(table, at))

    @property
    def assumes_drafting(self) -> bool:
        return self.drafting.workload == ASSUMED

    @property
    def caveats(self) -> Caveats:
        return self.table.caveats

    def caveats_at(self, batch: int, context: float) -> Caveats:
        return self._costs(batch, context).caveats

    def with_drafting(self, drafting: Drafting) -> "ServedStep":
        table = replace(self.table, drafting=drafting)
        return replace(self, table=table, drafting=drafting)

    def extending(self) -> "ServedStep":
        """The same where a plain step extends the drafter's cache, as SGLang's does."""
        if self.assumes_drafting:
            return self
        clocks = (replace(c, plain_fixed_us=c.fixed_us) for c in self.drafting.batches)
        return self.with_drafting(replace(self.drafting, batches=tuple(clocks)))

    def covers(self, batch: int, width: int, context: float) -> bool:
        return batch * width < len(self._costs(batch, context).step_cost_us)

    def us(self, batch: int, width: int, levels: int, context: float) -> Estimate:
        """A step's time in microseconds, with the 95 % interval of its forward.

        Args:
            batch: requests that decode together.
            width: tokens that each verifies, its root included.
            levels: drafted one after another; 0 decodes plainly.
            context: tokens in a request's KV cache, mean over the batch.

        Raises:
            DataError: a batch, a context or a width that is not covered.
        """
        if not self.covers(batch, width, context):
            raise DataError(
                f"{self.table.path}: has no cost of {width} tokens a request at batch "
                f"{batch}; verify fewer, or sweep wider"
            )
        cost, beside_us = self._costs(batch, context), self.beside_us(batch, levels)
        low, us, high = (
            float(array[batch * width] + beside_us)
            for array in (cost.low_us, cost.step_cost_us, cost.high_us)
        )
        return Estimate(us, low, high)

    def beside_us(self, batch: int, levels: int) -> float:
        return self.drafting.at(batch).overhead_us(levels)

    def ratio(self, batch: int, width: int, levels: int, context: float) -> Estimate:
        """A step's time over plain decoding's, with its 95 % interval; see `us`.

        It has the errors of both forwards, as if independent, and the whole of assumed
        drafting; measured drafting has no error.
        """
        step_us, plain_us = (
            self.us(batch, *place, context).value for place in ((width, levels), (1, 0))
        )
        ratio = step_us / plain_us
        if width == 1:
            return Estimate(ratio, ratio, ratio)
        cost, at = self._costs(batch, context), (batch, batch * width)
        low, us, high = cost.low_us, cost.step_cost_us, cost.high_us
        half = math.hypot(*((high[t] - low[t]) / 2.0 / us[t] for t in at))
        if self.assumes_drafting:
            undrafted = float(us[batch * width] / us[batch])
            half = math.hypot(half, math.log(max(ratio / undrafted, 1.0)))
        return Estimate(ratio, ratio * math.exp(-half), ratio * math.exp(half))

    @cached_property
    def _costs(self) -> Callable[[int, float], StepCosts]:
        return lru_cache(CACHE_SIZE)(partial(self.table.costs, outside=self.outside))


def _assumed(table: CostTable, context: float) -> Drafting:
    levels = np.arange(LEVELS + 1.0)
    clocks = (
        DraftClock(batch, tuple((us * levels).tolist()), 0.0, 0.0)
        for batch in table.axes.batch
        for us in [_level_us(table, batch, context)]
    )
    return Drafting(ASSUMED, table.key.engine, tuple(clocks))


def _level_us(table: CostTable, batch: int, context: float) -> float:
    """One of the target's layers and its head, on a token of each request."""
    cost, model, one = table.cost, table.model, np.array([float(batch)])
    union = table.activation.at(one, batch)
    features = features_at(cost.shape, one, union, np.array([context]), one)
    layers = cost.layers.latency_us(features)[0] / table.fit.measured_layers
    head = model.vocab_size * model.hidden_size / model.non_moe_weights
    return float(layers + head * cost.non_moe.latency_us(features)[0])
