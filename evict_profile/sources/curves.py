"""Latencies interpolated between measured sizes, in logarithms.

Above the largest size latency is proportional to size; below the smallest it is
constant.
"""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from evict_profile.errors import ConfigError
from evict_profile.stats import Floats

MIN_LEVELS = 2
"""Contexts that a batch needs to be interpolated over context."""


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
        """Microseconds."""
        beyond = max(1.0, size / float(self.sizes[-1]))
        log_us = np.interp(np.log(size), np.log(self.sizes), np.log(self.us))
        return float(np.exp(log_us) * beyond)


@dataclass(frozen=True)
class AttentionLatency:
    """Attention latency by sequences and context: a curve for each batch."""

    batches: Floats
    curves: tuple[Curve, ...]
    _at_context: dict[float, Curve] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "AttentionLatency":
        """Rows of decoding; their cache holds `isl + step` tokens."""
        rows = rows.assign(context=rows["isl"] + rows["step"])
        curves = {b: Curve.of(own, "context") for b, own in rows.groupby("batch_size")}
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
        """Latency over m, bilinear in log n and log k, without levels with a NaN."""
        log_us, beyond = np.log(self.us), 1.0
        for size, levels in ((k, self.axes[2]), (n, self.axes[1])):
            at = np.interp(np.log(size), np.log(levels), np.arange(len(levels)))
            low, share = int(at), at % 1.0
            below = log_us[..., low]
            log_us = (
                (1.0 - share) * below + share * log_us[..., low + 1] if share else below
            )
            beyond *= max(1.0, size / levels[-1])
        known = ~np.isnan(log_us)
        if not known.any():
            raise ConfigError(
                f"no rows of products with {n} outputs and {k} inputs; choose another "
                "--dtype or engine"
            )
        return Curve(self.axes[0][known], np.exp(log_us[known]) * beyond)
