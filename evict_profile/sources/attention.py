"""Latency of a layer's attention, or of what replaces it.

Rows of decoding have one query per sequence. Attention of n queries of one request lies
between that of one query per request and that of a cache per query; the estimate is
their geometric mean.

Other layers go by a launch and their bytes. A recurrent state is read once, and kept
for each of n tokens so that a rejected draft can be undone. Sparse and compressed
attention reads as much of the cache as it sees.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from evict_profile.config.model import LayerSpec, ModelSpec
from evict_profile.sources.rows import BF16, AttentionLatency, KernelRows, Latency
from evict_profile.stats import Estimate

PLAIN, MLA, MODULE = "attention", "mla", "mla module"
"""Operations of attention; the module holds its products."""

WINDOWED = ("sliding", "chunked")
"""Kinds of other layers that run the kernel of attention."""

STATE_BYTES, CACHE_BYTES = 4, 2
"""Of a value."""

Cost = Callable[[int, int, int], Estimate]
"""Of one layer by tokens, context and batch."""


@dataclass(frozen=True)
class Attention:
    rows: KernelRows
    model: ModelSpec
    ranks: int
    dtype: str
    _kernels: list[str] = field(default_factory=list)

    def at(self, tokens: int, context: int, batch: int) -> Estimate:
        """Microseconds of one layer, the mean over all, between its bounds."""
        costs = [(n, cost(tokens, context, batch)) for n, cost in self._costs]
        ends = [(n, (us.value, us.low, us.high)) for n, us in costs]
        sums = (sum(n * us[end] for n, us in ends) for end in range(3))
        return Estimate(*(us / self.model.num_layers for us in sums))

    @property
    def kernel(self) -> str:
        return (*self._kernels, "none")[0] if self._costs else "none"

    @property
    def heads(self) -> dict[str, int]:
        a, ranks = self.model.attention, self.ranks
        kv_heads = max(1, a.num_kv_heads // ranks)
        return {"num_heads": a.num_heads // ranks, "num_key_value_heads": kv_heads}

    @property
    def operation(self) -> str:
        if self.model.attention.kind != "mla":
            return PLAIN
        return MLA if self.rows.pair.engine == "sglang" else MODULE

    @property
    def by_bytes(self) -> tuple[str, ...]:
        kinds = (other.kind for other in self.model.other_layers)
        return tuple(kind for kind in kinds if kind not in (*WINDOWED, "none"))

    def reaches(self, context: int, batch: int) -> bool:
        if not self.model.full_layers:
            return True
        longest = self._longest[self._longest.index >= batch]
        return bool(len(longest)) and bool(longest.iloc[0] >= context)

    @cached_property
    def _longest(self) -> pd.Series:
        rows = self.rows.of(self.operation)
        sizes = {**self.heads, "head_dim": self.model.attention.head_dim}
        for column, size in sizes.items():
            if column in rows:
                levels = np.sort(rows[column].unique())
                above = levels[levels >= size]
                rows = rows[rows[column] == (*above, levels[-1])[0]]
        return (rows["isl"] + rows["step"]).groupby(rows["batch_size"]).max()

    @cached_property
    def _costs(self) -> list[tuple[int, Cost]]:
        full = [(n, self._full()) for n in [self.model.full_layers] if n]
        others = [o for o in self.model.other_layers if o.kind != "none"]
        return [*full, *((other.layers, self._other(other)) for other in others)]

    def _full(self) -> Cost:
        a, full = self.model.attention, self._attention(0)
        if not a.sliding_window:
            return _between(full)
        windowed = self._attention(a.sliding_window)

        def mean(sequences: int, context: int) -> float:
            us = windowed(sequences, min(context, a.sliding_window))
            rest = (a.sliding_every - 1) * full(sequences, context)
            return (us + rest) / a.sliding_every

        return _between(mean)

    def _other(self, other: LayerSpec) -> Cost:
        if other.kind in WINDOWED:
            return _between(self._attention(other.window), other.window)
        if other.window:
            return _between(self._reading, other.window)
        state = STATE_BYTES * other.state / self.ranks

        def kept(tokens: int, context: int, batch: int) -> Estimate:
            us = self.rows.moved_us(state * (batch + tokens))
            return Estimate(us, us, us)

        return kept

    def _reading(self, sequences: int, context: int) -> float:
        a = self.model.attention
        held = 1 if a.kind == "mla" else min(self.ranks, a.num_kv_heads)
        values = a.cache_values_per_token / held
        return self.rows.moved_us(CACHE_BYTES * values * sequences * context)

    def _attention(self, window: int) -> Latency:
        def made(rows: pd.DataFrame) -> Latency:
            if "window_size" in rows:
                has = (rows["window_size"] == window).any()
                rows = rows[rows["window_size"] == (window if has else 0)]
            rows = self._one_cache(rows)
            return AttentionLatency.of(rows).at

        rows, sizes = self.rows.of(self.operation), self.heads
        if self.operation == PLAIN:
            sizes = {"head_dim": self.model.attention.head_dim, **sizes}
        else:
            del sizes["num_key_value_heads"]
        if self.operation == MODULE:
            there = set(rows["gemm_type"])
            dtype = self.rows.nearest_dtype(MODULE, self.dtype, there)
            rows = rows[rows["gemm_type"] == dtype]
        return self.rows.latency(self.operation, rows, sizes, made)

    def _one_cache(self, rows: pd.DataFrame) -> pd.DataFrame:
        bf16 = rows[rows["kv_cache_dtype"] == BF16]
        rows = rows if bf16.empty else bf16
        self._kernels.append(str(rows["kernel_source"].mode()[0]))
        return rows[rows["kernel_source"] == self._kernels[-1]]


def _between(us: Latency, window: int | None = None) -> Cost:
    def cost(tokens: int, context: int, batch: int) -> Estimate:
        seen = min(context, window or context)
        low, high = sorted(us(sequences, seen) for sequences in (batch, tokens))
        return Estimate((low * high) ** 0.5, low, high)

    return cost
