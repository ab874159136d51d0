"""A layer without rows of its own, by its bytes and what its kernel takes for others.

An expert takes its bytes over the bandwidth that the kernel reaches, a token the time
of its products, and a layer what it takes besides: medians over the kernel's layers.
The error is that of each of these layers, predicted from those of other sizes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from evict_profile.sources.aiconfigurator import Source
from evict_profile.sources.experts import ExpertRows
from evict_profile.sources.gates import expert_gates
from evict_profile.sources.pairs import KernelKey, layer_name, pairs
from evict_profile.stats import Floats

MIN_LAYERS = 2


@dataclass(frozen=True)
class NearRows(ExpertRows):
    """A layer whose own rows do not identify its cost; `nearest` are its kernel's."""

    layers: tuple[ExpertRows, ...]

    @classmethod
    def of_others(cls, source: Source, own: ExpertRows) -> "NearRows":
        layers = usable_layers(source, own.pair._replace(shape=(0, 0, 0, 0), tp=0))
        others = tuple(each for each in layers if each.pair != own.pair)
        return cls(own.pair, own.rows, own.peak_gbps, others)

    @property
    def identified(self) -> bool:
        return len(self.layers) >= MIN_LAYERS

    @property
    def nearest(self) -> tuple[ExpertRows, ...]:
        return self.layers

    @property
    def origin(self) -> str:
        names = ", ".join(layer_name(each.pair) for each in self.layers)
        return f"from {len(self.layers)} layers near by: {names or 'none'}"

    @cached_property
    def coefficients(self) -> Floats:
        return _law(self.pair, self.peak_gbps, self.layers)

    def held_out(self) -> Floats:
        """Relative error of rows of each layer, predicted from other sizes, [rows]."""
        return np.concatenate([_error(each, self.layers) for each in self.layers])


@cache
def usable_layers(source: Source, kernel: KernelKey) -> tuple[ExpertRows, ...]:
    """The layers of a kernel whose own rows pass their gates."""
    every = (
        ExpertRows.of(source, pair)
        for pair in pairs(source, kernel.gpu, kernel.engine)
        if pair._replace(shape=kernel.shape, tp=kernel.tp) == kernel
    )
    good = (e for e in every if e.identified and all(g.passed for g in expert_gates(e)))
    return tuple(good)


def _error(layer: ExpertRows, layers: Sequence[ExpertRows]) -> Floats:
    """Of the rows of a layer, predicted from other sizes, else from other cuts."""
    others = [each for each in layers if each.pair != layer.pair]
    sizes = [each for each in others if each.pair.shape != layer.pair.shape]
    law = _law(layer.pair, layer.peak_gbps, sizes or others)
    us = layer.cold["us"].to_numpy(float)
    error: Floats = np.abs(layer.design(layer.cold) @ law / us - 1.0)
    return error


def _law(pair: KernelKey, peak_gbps: float, layers: Sequence[ExpertRows]) -> Floats:
    """Microseconds per unit of each of `columns`, float64 [columns]."""
    share = np.median([each.bandwidth_share for each in layers])
    base = np.median([each.coefficients[0] for each in layers])
    work = [each.coefficients[2:] / _work(each.pair) for each in layers]
    read = pair.bytes_per_expert / (share * peak_gbps) / 1e3
    return np.array([base, read, *np.median(work, axis=0) * _work(pair)])


def _work(pair: KernelKey) -> float:
    return pair.bytes_per_expert * pair.shape[2]
