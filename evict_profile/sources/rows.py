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

BF16 = "bfloat16"
NEAREST_DTYPES = {
    "fp8_block": ("fp8", BF16),
    "fp8": ("fp8_block", BF16),
    "nvfp4": ("fp8_block", "fp8", BF16),
    BF16: ("fp8_block",),
}
MAX_SLOWDOWN = 2.0
"""Of quantised over bf16 products of one token: above, the host was timed."""

LAUNCH_US = 3.0
"""Of a small kernel on any GPU, as the wheel states it."""

Latency = Callable[..., float]
"""Microseconds by sizes."""


@dataclass(frozen=True)
class KernelRows:
    """The rows for one expert kernel.

    `substituted_versions` names, by operation, the engine version whose rows are used;
    `stand_ins`, by operation and column, what replaces a value without rows.
    """

    source: Source
    pair: KernelKey
    substituted_versions: dict[str, str] = field(default_factory=dict)
    stand_ins: dict[str, str] = field(default_factory=dict)

    def of(self, operation: str, **wanted: Any) -> pd.DataFrame:
        """Rows with these values."""
        where = (self.pair.gpu, operation, self.pair.engine)
        version = self.source.version_for(*where, self.pair.version)
        if version != self.pair.version:
            self.substituted_versions[operation] = version
        rows = self.source.rows(*where, version)
        for name, value in wanted.items():
            own = rows[rows[name] == value]
            if own.empty:
                there = ", ".join(map(str, sorted(rows[name].unique())))
                raise ConfigError(
                    f"{self.pair.engine} {version} on {self.pair.gpu}: {operation} has "
                    f"no rows with {name} {value}, only {there}; choose another "
                    "--tp, --ep, --dtype or engine"
                )
            rows = own
        return rows

    def moved_us(self, moved: float) -> float:
        """Of a small kernel that moves bytes: a launch, and they over the bandwidth."""
        return LAUNCH_US + moved / GPUS[self.pair.gpu].bandwidth_gbps / 1e3

    def nearest_dtype(self, operation: str, dtype: str, usable: set[str]) -> str:
        for found in (dtype, *NEAREST_DTYPES.get(dtype, ())):
            if found in usable:
                if found != dtype:
                    self.stand_ins[f"{operation} of {dtype}"] = found
                return found
        there = ", ".join(sorted(usable))
        raise ConfigError(
            f"{self.pair.engine} on {self.pair.gpu}: {operation} has no usable rows of "
            f"{dtype}, only of {there}; choose another --dtype or engine"
        )

    def products(self, dtype: str) -> pd.DataFrame:
        rows = self.of("gemm")
        medians = rows[rows["m"] == 1].groupby(["gemm_dtype", "n", "k"])["us"].median()
        usable = {
            each
            for each in rows["gemm_dtype"].unique()
            if (medians[each] / medians[BF16]).median() <= MAX_SLOWDOWN
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
        found = [
            self.latency(operation, rows[rows[column] == levels[n]], dict(rest), make)
            for n in near
        ]
        if size not in levels:
            said = " and ".join(f"{levels[n]:g}" for n in near)
            self.stand_ins[f"{operation} of {column} {size:g}"] = said
        beyond = max(1.0, size / levels[-1])
        return lambda *sizes: float(
            beyond * found[0](*sizes) ** (1.0 - share) * found[-1](*sizes) ** share
        )
