"""Steps of a trace, charged as measured forwards of another model's shape.

A replay charges what a fit says. Here each step runs: so many tokens through the real
kernels of a model that is too large to be trained here, with as many experts awake as
the trace's routing would wake in it (benchmarks/carried.py). A forward is measured once
for each (width, union on a grid, batch), with a few draws of experts and trees, and
charged at its median.

Drafting is charged as a share of a plain step, since no head of that shape was trained;
what else a step takes (acceptance, host) is not charged.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from benchmarks.carried import Carried
from evict_profile.config import ModelSpec
from evict_profile.errors import TraceError
from evict_profile.replay.ground import Ground
from evict_profile.replay.prices import Prices
from evict_profile.runtime import CostTable
from evict_profile.stats import Floats, Ints

Message = dict[str, Any]
Measure = Callable[[Message], Message]
"""What times a cell: `measure` of runners.torch_moe.session."""

SEEDS = (0, 1, 2)
GRID_POINTS = 32
"""Unions are rounded to so many steps from none to all experts."""


def feasible(model: ModelSpec, tokens: int, union: float) -> int:
    """A union that can be forced: on the grid, and within what tokens can wake."""
    step = max(1, model.moe.num_experts // GRID_POINTS)
    rounded = step * round(union / step)
    return min(max(rounded, model.smallest_union()), model.largest_union(tokens))


@dataclass(frozen=True)
class Forward:
    """One forward's time in microseconds: the median of its draws, and their ends."""

    us: float
    low_us: float
    high_us: float

    @property
    def spread(self) -> float:
        """From the fastest to the slowest draw, over the median."""
        return (self.high_us - self.low_us) / self.us


Place = tuple[int, int, int]
"""Width, union and batch."""


class Forwards:
    """Forwards of one model at one context, each measured once.

    `found` holds what was measured so far.
    """

    def __init__(
        self, measure: Measure, model: ModelSpec, layers: int, context: int
    ) -> None:
        """`layers`: MoE layers that `measure` runs; their time is scaled to all."""
        self.model = model
        self.found: dict[Place, Forward] = {}
        self._measure, self._context = measure, context
        self._scale = model.moe_layers / layers
        self._ends: dict[tuple[int, int], list[float]] = {}
        self._reference_us = math.nan

    def of(self, tokens: int, union: float, batch: int) -> Forward:
        """The forward of so many tokens of a batch, shared out evenly."""
        width = math.ceil(tokens / batch)
        place = (width, feasible(self.model, width * batch, union), batch)
        if place not in self.found:
            self.found[place] = self._run(*place)
        return self.found[place]

    @property
    def spread(self) -> float:
        """Median spread of the forwards; see `Forward.spread`."""
        return median(forward.spread for forward in self.found.values())

    def _run(self, width: int, union: int, batch: int) -> Forward:
        if (width, batch) not in self._ends:
            self._ends[width, batch] = self._time("ends", width, 0, batch)
        layers = self._time("layers", width, union, batch)
        pairs = zip(layers, self._ends[width, batch], strict=True)
        whole = [self._scale * inside + ends for inside, ends in pairs]
        return Forward(median(whole), min(whole), max(whole))

    def _time(self, part: str, width: int, union: int, batch: int) -> list[float]:
        cell = {
            "part": part,
            "width": width,
            "union": union,
            "context": self._context,
            "batch": batch,
            "split": "balanced",
        }
        answer = self._measure({"cell": cell, "seeds": list(SEEDS), "layers": None})
        return [self._at_one_speed(sample) for sample in answer["samples"]]

    def _at_one_speed(self, sample: Mapping[str, float]) -> float:
        """A sample's time, were the machine as fast as at the first."""
        reference_us = sample["reference_us"]
        if math.isnan(reference_us):
            return sample["clock_us"]
        if math.isnan(self._reference_us):
            self._reference_us = reference_us
        return sample["clock_us"] * self._reference_us / reference_us


class MeasuredPrices(Prices):
    """Prices of a replay, with forwards that ran in the place of fitted ones."""

    def __init__(
        self,
        table: CostTable,
        ground: Ground,
        batch: int,
        forwards: Forwards,
        draft_share: float,
    ) -> None:
        """Prices of one batch size.

        Args:
            table: of the model that runs, with its growth of the union.
            ground: the trace.
            batch: requests in lockstep.
            forwards: what runs.
            draft_share: time of a draft level over that of a plain step.

        Raises:
            TraceError: the trace holds no routes to be carried over.
        """
        super().__init__(table, ground, batch)
        if not ground.has_routes:
            raise TraceError(
                "this trace holds no routes, so nothing is known of the unions that "
                "are to be carried over; record them"
            )
        self._forwards = forwards
        self._carried = Carried(ground.trace.about, forwards.model)
        alone = float(self.grown(np.array([float(batch)]))[0])
        self._level_us = draft_share * forwards.of(batch, alone, batch).us

    def verify_us(self, tokens: Ints, union: Floats, context: float) -> Floats:
        """The forward as it ran; it saw one context, whatever the step's."""
        there = self._carried.union(tokens.astype(np.float64), union)
        pairs = zip(tokens.tolist(), there.tolist(), strict=True)
        return np.array([self._forwards.of(t, u, self.batch).us for t, u in pairs])

    def draft_us(self, depth: int) -> float:
        """So many levels, all alike."""
        return depth * self._level_us

    def fixed_us(self, depth: int) -> float:
        """Not charged."""
        return 0.0
