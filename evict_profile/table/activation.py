"""How many experts run: the union at which a table's costs are read.

Each class refuses with a ValueError.
"""

from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from evict_profile.cost_model import activated_union
from evict_profile.records import Count, NotNegative, check_distinct, check_rising
from evict_profile.stats import Floats


class BatchActivation(Struct, frozen=True):
    """U(t) of so many requests, t = 0..batch * width; below `batch`, of their roots."""

    batch: Count
    union: tuple[NotNegative, ...]

    def __post_init__(self) -> None:
        check_rising("union", self.union)


class ActivationCurve(Struct, frozen=True, dict=True):
    """U(t): mean distinct experts a layer when t tokens run; t = 0..len - 1.

    `by_batch` holds measured batches, of which the nearest in ratio serves. `union`
    serves where there is none, and beyond a batch's own end.
    """

    workload: str
    is_guess: bool
    union: tuple[NotNegative, ...]
    by_batch: tuple[BatchActivation, ...] = ()

    def __post_init__(self) -> None:
        check_rising("union", self.union)
        check_distinct("by_batch", [curve.batch for curve in self.by_batch])

    def at(self, tokens: Floats, batch: float) -> Floats:
        """The union when so many tokens of a batch run, float64 [places]."""
        return activated_union(tokens, batch, *self._arrays)

    def capped(self, experts: int) -> "ActivationCurve":
        def cap(union: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(min(u, float(experts)) for u in union)

        batches = (replace(curve, union=cap(curve.union)) for curve in self.by_batch)
        return replace(self, union=cap(self.union), by_batch=tuple(batches))

    @cached_property
    def _arrays(self) -> tuple[Floats, dict[int, Floats]]:
        batches = {curve.batch: np.array(curve.union) for curve in self.by_batch}
        return np.array(self.union), batches
