"""Latency of a served step that verifies n tokens a request and drafts L levels.

`ServedStep` adds what a table's forward leaves out. Where drafting is not known, a
level is assumed to take one of the target's layers and its head, as a
multi-token-prediction head runs. EAGLE-3's dense layer should take less.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike

from evict_profile.cost_model import features_at
from evict_profile.drafting import DraftClock, Drafting
from evict_profile.errors import DataError
from evict_profile.records import replace
from evict_profile.stats import Estimate, Floats
from evict_profile.table.cost_table import CostTable, Outside
from evict_profile.table.key import Caveats
from evict_profile.table.parts import StepCosts

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
        at = min(table.axes.context) if context is None else context
        return cls(table, drafting or table.drafting or _assumed(table, at))

    @property
    def assumes_drafting(self) -> bool:
        return self.drafting.workload == ASSUMED

    @property
    def caveats(self) -> Caveats:
        return self.table.caveats

    def caveats_at(self, batch: int, context: float) -> Caveats:
        return self._costs(batch, context).caveats

    @cached_property
    def unpadded(self) -> "ServedStep":
        """The same without the padding to captured widths."""
        return replace(self, table=self.table.unpadded)

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
        costs, beside_us = self._costs(batch, context), self.beside_us(batch, levels)
        cost, low, high = (float(us[batch * width] + beside_us) for us in costs[:3])
        return Estimate(cost, low, high)

    def steps_us(self, batch: int, levels: int, context: float) -> Floats:
        """Steps that verify t tokens in all, float64 [T + 1]; see `us`."""
        return self._costs(batch, context).step_cost_us + self.beside_us(batch, levels)

    def beside_us(self, batch: int, levels: int) -> float:
        return self.drafting.at(batch).beside_us(levels)

    def tokens_us(self, tokens: ArrayLike, batch: int) -> Floats:
        return self.drafting.tokens_us(tokens, batch, self.table.axes.capture_sizes)

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
        return lru_cache(CACHE_SIZE)(self._verified)

    def _verified(self, batch: int, context: float) -> StepCosts:
        """The forward, and what its tokens add beside it."""
        costs = self.table.costs(batch, context, self.outside)
        tokens_us = self.tokens_us(np.arange(len(costs.step_cost_us)), batch)
        cost, low, high = (us + tokens_us for us in costs[:3])
        return StepCosts.of(cost, low, high, costs.caveats)


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
