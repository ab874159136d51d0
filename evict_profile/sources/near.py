"""Latency of a layer's experts from the layers near by of the same kernel.

An expert takes a time of its own, and its bytes over a bandwidth; a token takes a time
of its own, and its products'. These amounts are fitted to the rows of the nearest
layers, in proportion to their nearness, and to what the layer itself has of rows read
from memory. The error is that of each of these layers, predicted from layers of other
sizes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from evict_profile.config.model import ModelSpec
from evict_profile.sources.aiconfigurator import Source
from evict_profile.sources.experts import ExpertRows, fitted
from evict_profile.sources.gates import expert_gates
from evict_profile.sources.pairs import KernelKey, layer_name, pairs, shape_of
from evict_profile.stats import Floats

NEAREST, MIN_LAYERS = 8, 2
MIN_ROWS = 4
"""Rows read from memory from which a layer counts."""

FAR = 3.0
"""Largest distance of the nearest layer; beyond, few layers were judged."""

AT_HAND = 0.1
"""Added to distances, so that a layer's own rows weigh ten times those at a distance of
0.9: a change of the hidden size by a factor of 2.5."""


@dataclass(frozen=True)
class NearRows(ExpertRows):
    """A layer whose own rows do not identify its cost.

    `layers` are of the same kernel; they may hold other cuts of the same model. Those
    of the shape `like` are taken, if it is given.
    """

    layers: tuple[ExpertRows, ...]
    like: tuple[int, ...] | None = None

    @classmethod
    def of_others(
        cls, source: Source, own: ExpertRows, like: ModelSpec | None = None
    ) -> "NearRows":
        """The layer from others of its kernel, or from those of one model alone."""
        layers = usable_layers(source, own.pair._replace(shape=(0, 0, 0, 0), tp=0))
        shape = shape_of(like) if like else None
        others = tuple(each for each in layers if each.pair != own.pair)
        return cls(own.pair, own.rows, own.peak_gbps, others, shape)

    @property
    def identified(self) -> bool:
        known = any(each.identified for each in self.nearest)
        return known and len(self.layers) >= MIN_LAYERS and self.distance <= FAR

    @property
    def distance(self) -> float:
        """Of the nearest layer; infinite without one."""
        return min((_distance(self.pair, e.pair) for e in self.nearest), default=np.inf)

    @cached_property
    def nearest(self) -> tuple[ExpertRows, ...]:
        return _nearest(self.pair, self._taken)

    @property
    def origin(self) -> str:
        names = ", ".join(layer_name(each.pair) for each in self.nearest)
        apart = f"; the nearest at a distance of {self.distance:.1f}" * bool(names)
        return f"from {len(self.nearest)} layers near by: {names or 'none'}{apart}"

    @cached_property
    def coefficients(self) -> Floats:
        return _law(self.pair, (*self._own, *self.nearest))

    def held_out(self) -> Floats:
        """Relative error of rows of each layer, predicted from other sizes, [rows]."""
        return self._left_out

    @cached_property
    def _left_out(self) -> Floats:
        others = [each for each in self.layers if each.pair.shape != self.like]
        judged = (*self._own, *_nearest(self.pair, others))
        return np.concatenate([_error(each, self._taken) for each in judged])

    @property
    def _taken(self) -> list[ExpertRows]:
        return [each for each in self.layers if self.like in (None, each.pair.shape)]

    @property
    def _own(self) -> tuple[ExpertRows, ...]:
        return (self,) if len(self.cold) >= MIN_ROWS else ()


@cache
def usable_layers(source: Source, kernel: KernelKey) -> tuple[ExpertRows, ...]:
    """The layers of a kernel whose rows pass their gates, or fit the cache in part."""
    every = (
        ExpertRows.of(source, pair)
        for pair in pairs(source, kernel.gpu, kernel.engine)
        if pair._replace(shape=kernel.shape, tp=kernel.tp) == kernel
    )
    return tuple(
        each
        for each in every
        if len(each.cold) >= MIN_ROWS
        and (not each.identified or all(gate.passed for gate in expert_gates(each)))
    )


def _error(layer: ExpertRows, layers: Sequence[ExpertRows]) -> Floats:
    """Of the rows of a layer, predicted from other sizes, else from other cuts."""
    others = [each for each in layers if each.pair != layer.pair]
    sizes = [each for each in others if each.pair.shape != layer.pair.shape]
    law = _law(layer.pair, _nearest(layer.pair, sizes or others))
    us = layer.cold["us"].to_numpy(float)
    error: Floats = np.abs(layer.design(layer.cold) @ law / us - 1.0)
    return error


def _law(pair: KernelKey, layers: Sequence[ExpertRows]) -> Floats:
    """Microseconds per unit of each of `columns` for a layer, float64 [columns]."""
    designs, us, weights = [], [], []
    for each in layers:
        one, union, tokens, *ramps = each.design(each.cold).T
        size = each.pair.bytes_per_expert / pair.bytes_per_expert
        work = size * each.pair.shape[2] / pair.shape[2]
        ramps = [work * ramp for ramp in ramps]
        terms = one, union, size * union, tokens, work * tokens, *ramps
        designs.append(np.stack(terms, axis=1))
        us.append(each.cold["us"].to_numpy())
        nearness = 1.0 / (_distance(pair, each.pair) + AT_HAND)
        weights.append(np.full(len(one), nearness))
    found = fitted(*map(np.concatenate, (designs, us, weights)))
    base, own, read, token, product, *rest = found
    return np.array([base, own + read, token + product, *rest])


def _nearest(pair: KernelKey, layers: Sequence[ExpertRows]) -> tuple[ExpertRows, ...]:
    ordered = sorted(layers, key=lambda each: _distance(pair, each.pair))
    return tuple(ordered[:NEAREST])


def _distance(one: KernelKey, other: KernelKey) -> float:
    """Sum of logarithms of ratios: hidden size, width of a rank, top-k, experts."""
    return float(np.abs(np.log(_sizes(one) / _sizes(other))).sum())


def _sizes(pair: KernelKey) -> Floats:
    return np.divide(pair.shape, (1, pair.tp, 1, 1))
