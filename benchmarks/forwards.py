"""Forwards of a model at one context, each timed once by the runner torch_moe."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from evict_profile.config import ModelSpec

Measure = Callable[[dict[str, Any]], dict[str, Any]]
"""What times a cell: `measure` of runners.torch_moe.session."""

SEEDS = (0, 1, 2)
GRID_POINTS = 32
"""Unions are rounded to so many steps from none to all experts."""


def feasible(model: ModelSpec, tokens: int, union: float) -> int:
    """A union that can be forced: on the grid, and within what tokens can activate."""
    step = max(1, model.moe.num_experts // GRID_POINTS)
    rounded = step * round(union / step)
    return min(max(rounded, model.smallest_union()), model.largest_union(tokens))


@dataclass(frozen=True)
class ForwardTime:
    """One forward's time in microseconds: the median of its draws and their bounds."""

    us: float
    low_us: float
    high_us: float

    @property
    def spread(self) -> float:
        """From the fastest to the slowest draw, over the median."""
        return (self.high_us - self.low_us) / self.us


class Forwards:
    """Forwards of one model at one context, each measured once.

    `found` holds what was measured so far.
    """

    def __init__(
        self, measure: Measure, model: ModelSpec, layers: int, context: int
    ) -> None:
        """`layers`: MoE layers that `measure` runs; their time is scaled to all."""
        self.model = model
        self.found: dict[tuple[int, int, int], ForwardTime] = {}
        self._measure, self._context = measure, context
        self._scale = model.moe_layers / layers
        self._non_moe: dict[tuple[int, int], list[float]] = {}
        self._reference_us = math.nan

    def of(self, tokens: int, union: float, batch: int) -> ForwardTime:
        """The forward of so many tokens of a batch, shared out evenly."""
        width = math.ceil(tokens / batch)
        place = (width, feasible(self.model, width * batch, union), batch)
        if place not in self.found:
            self.found[place] = self._run(*place)
        return self.found[place]

    @property
    def spread(self) -> float:
        """Median spread of the forwards; see `ForwardTime.spread`."""
        return median(forward.spread for forward in self.found.values())

    def _run(self, width: int, union: int, batch: int) -> ForwardTime:
        if (width, batch) not in self._non_moe:
            self._non_moe[width, batch] = self._time("non_moe", width, 0, batch)
        layers = self._time("layers", width, union, batch)
        pairs = zip(layers, self._non_moe[width, batch], strict=True)
        whole = [self._scale * inside + beside for inside, beside in pairs]
        return ForwardTime(median(whole), min(whole), max(whole))

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
