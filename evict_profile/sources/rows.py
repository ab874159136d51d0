"""Rows of one engine on one GPU, and what stands in for those that are missing.

A size between two that have rows is interpolated in logarithms. Beyond the largest size
latency is proportional to it, below the smallest it is constant. A data type without
rows, or whose products are slower than a kernel in a graph can be, takes the rows of
the nearest one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from evict_profile.errors import ConfigError
from evict_profile.sources.aiconfigurator import Source
from evict_profile.sources.pairs import GPUS, KernelKey
from evict_profile.stats import Floats

BF16 = "bfloat16"
NEAREST_DTYPES = {
    "fp8_block": ("fp8", BF16),
    "fp8": ("fp8_block", BF16),
    "nvfp4": ("fp8_block", "fp8", BF16),
    BF16: ("fp8_block",),
}
MAX_SLOWDOWN = 2.0
"""Of quantised over bf16 products of one token: above, the host was timed."""

MIN_LEVELS = 2
"""Contexts that a batch needs to be interpolated over context."""

LAUNCH_US = 3.0
"""Of a small kernel on any GPU, as the wheel states it."""

Latency = Callable[..., float]
"""Microseconds by sizes."""


@dataclass(frozen=True)
class KernelRows:
    """`substituted_versions` names, by operation, the engine version that serves.

    `stand_ins` holds, by operation and column, what replaces a value without rows.
    """

    source: Source
    pair: KernelKey
    substituted_versions: dict[str, str] = field(default_factory=dict)
    stand_ins: dict[str, str] = field(default_factory=dict)

    def of(self, operation: str, **wanted: Any) -> pd.DataFrame:
        where = (self.pair.gpu, operation, self.pair.engine)
        version = self.source.version_for(*where, self.pair.version)
        if version != self.pair.version:
            self.substituted_versions[operation] = version
        rows = self.source.rows(*where, version)
        for name, value in wanted.items():
            matching = rows[rows[name] == value]
            if matching.empty:
                there = ", ".join(map(str, sorted(rows[name].unique())))
                raise ConfigError(
                    f"{self.pair.engine} {version} on {self.pair.gpu}: {operation} has "
                    f"no rows with {name} {value}, only {there}; choose another "
                    "--tp, --ep, --dtype or engine"
                )
            rows = matching
        return rows

    def moved_us(self, moved: float) -> float:
        """Of a small kernel that moves bytes: a launch, and they over the bandwidth."""
        return LAUNCH_US + moved / GPUS[self.pair.gpu].bandwidth_gbps / 1e3

    def nearest_dtype(self, operation: str, dtype: str, usable: set[str]) -> str:
        for candidate in (dtype, *NEAREST_DTYPES.get(dtype, ())):
            if candidate in usable:
                if candidate != dtype:
                    self.stand_ins[f"{operation} of {dtype}"] = candidate
                return candidate
        there = ", ".join(sorted(usable))
        raise ConfigError(
            f"{self.pair.engine} on {self.pair.gpu}: {operation} has no usable rows of "
            f"{dtype}, only of {there}; choose another --dtype or engine"
        )

    def products(self, dtype: str) -> pd.DataFrame:
        rows = self.of("gemm")
        medians = rows[rows["m"] == 1].groupby(["gemm_dtype", "n", "k"])["us"].median()
        usable = {
            row_dtype
            for row_dtype in rows["gemm_dtype"].unique()
            if (medians[row_dtype] / medians[BF16]).median() <= MAX_SLOWDOWN
        }
        return rows[rows["gemm_dtype"] == self.nearest_dtype("gemm", dtype, usable)]

    def latency(
        self,
        operation: str,
        rows: pd.DataFrame,
        sizes: Mapping[str, float],
        make: Callable[[pd.DataFrame], Latency],
    ) -> Latency:
        """`make` of the rows with these sizes, or between those of the nearest two."""
        if not sizes:
            return make(rows)
        (column, size), *rest = sizes.items()
        levels = np.sort(rows[column].unique())
        at = float(np.interp(np.log(size), np.log(levels), np.arange(len(levels))))
        low, share = int(at), at % 1.0
        near = [low, low + 1] if share else [low]
        ends = [
            self.latency(operation, rows[rows[column] == levels[n]], dict(rest), make)
            for n in near
        ]
        if size not in levels:
            sizes_used = " and ".join(f"{levels[n]:g}" for n in near)
            self.stand_ins[f"{operation} of {column} {size:g}"] = sizes_used
        beyond = max(1.0, size / levels[-1])
        return lambda *sizes: float(
            beyond * ends[0](*sizes) ** (1.0 - share) * ends[-1](*sizes) ** share
        )


@dataclass(frozen=True)
class Curve:
    """Latency over one size; float64 [levels], sizes increasing."""

    sizes: Floats
    us: Floats

    @classmethod
    def of(cls, rows: pd.DataFrame, size: str) -> "Curve":
        medians = rows.groupby(size)["us"].median()
        return cls(medians.index.to_numpy(float), medians.to_numpy(float))

    def at(self, size: float) -> float:
        beyond = max(1.0, size / float(self.sizes[-1]))
        log_us = np.interp(np.log(size), np.log(self.sizes), np.log(self.us))
        return float(np.exp(log_us) * beyond)


@dataclass(frozen=True)
class AttentionLatency:
    batches: Floats
    curves: tuple[Curve, ...]
    _at_context: dict[float, Curve] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "AttentionLatency":
        rows = rows.assign(context=rows["isl"] + rows["step"])
        curves = {b: Curve.of(g, "context") for b, g in rows.groupby("batch_size")}
        kept = {b: c for b, c in curves.items() if len(c.sizes) >= MIN_LEVELS}
        return cls(np.array(list(kept), dtype=np.float64), tuple(kept.values()))

    def at(self, sequences: float, context: float) -> float:
        """Microseconds; each sequence has one query."""
        if context not in self._at_context:
            us = np.array([curve.at(context) for curve in self.curves])
            self._at_context[context] = Curve(self.batches, us)
        return self._at_context[context].at(sequences)


@dataclass(frozen=True)
class GemmLatency:
    """Latency of [m, k] x [k, n]: float64 [m, n, k], NaN where not measured."""

    axes: tuple[Floats, Floats, Floats]
    us: Floats
    _curves: dict[tuple[int, int], Curve] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "GemmLatency":
        m, n, k = (np.unique(rows[name]).astype(float) for name in "mnk")
        medians = rows.groupby(["m", "n", "k"])["us"].median()
        every = medians.reindex(pd.MultiIndex.from_product((m, n, k))).to_numpy(float)
        return cls((m, n, k), every.reshape(len(m), len(n), len(k)))

    def at(self, m: int, n: int, k: int) -> float:
        """Microseconds, linear in m."""
        if (n, k) not in self._curves:
            self._curves[n, k] = self._curve(n, k)
        curve = self._curves[n, k]
        beyond = max(1.0, m / float(curve.sizes[-1]))
        return float(np.interp(m, curve.sizes, curve.us) * beyond)

    def _curve(self, n: int, k: int) -> Curve:
        log_us, beyond = np.log(self.us), 1.0
        for size, levels in ((k, self.axes[2]), (n, self.axes[1])):
            at = np.interp(np.log(size), np.log(levels), np.arange(len(levels)))
            low, share = int(at), at % 1.0
            below = log_us[..., low]
            log_us = (
                (1.0 - share) * below + share * log_us[..., low + 1] if share else below
            )
            beyond *= max(1.0, size / levels[-1])
        is_measured = ~np.isnan(log_us)
        if not is_measured.any():
            raise ConfigError(
                f"no rows of products with {n} outputs and {k} inputs; choose another "
                "--dtype or engine"
            )
        return Curve(self.axes[0][is_measured], np.exp(log_us[is_measured]) * beyond)
