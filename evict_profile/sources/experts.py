"""Latency of a MoE layer's experts from the rows of one kernel: a + b U + c tokens.

On "balanced" rows U grows with the tokens until all experts are active. U and tokens
are identified only if rows before and after that point exist.

Rows state tokens, not U. The collector's balanced sampler gives it: it chooses expert
(t + j * ceil(E/k)) mod E for token t and choice j, so U is exact. A group-limited
router (DeepSeek-V3: the best 4 of 8 groups) replaces wanted experts outside the kept
groups by the lowest experts inside: 64 tokens activate half of all experts.

A layer without such rows goes by its bytes. An expert takes them over the bandwidth
that the kernel reaches, a token the time of its products, and a layer what it takes
besides: medians over the kernel's other layers.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from math import ceil

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.optimize import nnls

from evict_profile.sources.aiconfigurator import Source
from evict_profile.sources.pairs import GPUS, GROUPS, KEPT, KEY, KernelKey
from evict_profile.stats import Bools, Floats, Ints

COLD = 1.5
"""Weights over L2 size from which a row counts: smaller weights stay in the cache when
a benchmark replays one layer."""

MAX_TOKENS = 2048
TOKEN_KNOTS = (64, 256, 1024)
"""Tokens at which the slope may change from memory to arithmetic."""

STRAY = 2.0
"""Factor by which a row is slower, or faster, than both rows beside it in tokens, from
which it is wrong. More tokens never take less time, and rows are at most a doubling of
tokens apart. 272 of the 3,347,211 rows of 0.12.0 are wrong by it."""

MIN_LAYERS = 2
"""Other layers of a kernel that its law needs."""


@dataclass(frozen=True)
class ExpertRows:
    """The rows of a layer; `others` are layers whose law costs it in their place."""

    pair: KernelKey
    rows: pd.DataFrame
    peak_gbps: float
    others: tuple["ExpertRows", ...] | None = None

    @classmethod
    def of(cls, source: Source, pair: KernelKey) -> "ExpertRows":
        rows = source.rows(pair.gpu, "moe", pair.engine, pair.version)
        layers = _rows_by_layer(source, pair.gpu, pair.engine, pair.version)
        places = layers.get((pair.kernel, pair.dtype, *pair.shape, pair.tp, pair.ep))
        rows = rows.iloc[:0] if places is None else rows.iloc[places]
        return cls(pair, rows, GPUS[pair.gpu].bandwidth_gbps)

    @cached_property
    def balanced(self) -> pd.DataFrame:
        """Median latency by tokens, with exact `union` and `cold`."""
        us = self._by_tokens[~are_strays(self._by_tokens)]
        rows = us[us.index <= MAX_TOKENS].reset_index()
        _, _, top_k, experts = self.pair.shape
        cut = (experts, top_k, self.pair.ep, self.pair.grouped)
        unions = np.array([balanced_union(int(n), *cut) for n in rows["num_tokens"]])
        read = unions.astype(np.float64) * self.pair.bytes_per_expert
        cache = 1e6 * GPUS[self.pair.gpu].l2_mb
        return rows.assign(union=unions.astype(np.float64), cold=read > COLD * cache)

    @cached_property
    def cold(self) -> pd.DataFrame:
        return self.balanced[self.balanced["cold"]]

    @property
    def strays(self) -> int:
        return int(are_strays(self._by_tokens).sum())

    @property
    def identified(self) -> bool:
        if self.others is not None:
            return len(self.others) >= MIN_LAYERS
        unions = self.cold["union"]
        return unions.nunique() >= 3 and bool((unions == unions.max()).sum() > 1)

    @property
    def origin(self) -> str:
        if self.others is not None:
            return f"by its bytes and {len(self.others)} other layers of the kernel"
        unions = sorted({int(union) for union in self.cold["union"]})
        read = f"{len(self.cold)} of {len(self.balanced)} rows were read from memory"
        return f"{read}, unions {unions}"

    @cached_property
    def coefficients(self) -> Floats:
        """Microseconds per unit of each of `columns`, float64 [columns]."""
        if self.others is not None:
            return law(self, self.others)
        return fitted(self.design, self.cold["us"].to_numpy())

    @property
    def bandwidth_share(self) -> float:
        """Bandwidth implied by the slope in U, over the memory's peak."""
        us_per_expert = self.coefficients[1]
        if us_per_expert <= 0.0:
            return np.inf
        gbps = self.pair.bytes_per_expert / us_per_expert / 1e3
        return float(gbps / self.peak_gbps)

    def us(self, tokens: Floats, union: Floats) -> Floats:
        """Microseconds of a layer, float64 [places]; `union` is over all ranks."""
        return columns(tokens, union / self.pair.ep) @ self.coefficients

    def held_out(self) -> Floats:
        """Relative error of rows that were not used to predict them, [rows]."""
        if self.others is not None:
            return np.concatenate([_left_out(e, self.others) for e in self.others])
        design, us = self.design, self.cold["us"].to_numpy()
        errors = np.empty(len(us))
        for row in range(len(us)):
            rest = np.arange(len(us)) != row
            errors[row] = design[row] @ fitted(design[rest], us[rest]) / us[row]
        return np.abs(errors - 1.0)

    @property
    def design(self) -> Floats:
        tokens = self.cold["num_tokens"].to_numpy(float)
        return columns(tokens, self.cold["union"].to_numpy())

    @cached_property
    def _by_tokens(self) -> "pd.Series[float]":
        rows = self.rows[self.rows["distribution"] == "balanced"]
        return rows.groupby("num_tokens")["us"].median()


@cache
def _rows_by_layer(
    source: Source, gpu: str, engine: str, version: str
) -> Mapping[Hashable, Ints]:
    groups = source.rows(gpu, "moe", engine, version).groupby(KEY).indices
    return {key: np.asarray(at) for key, at in groups.items()}


def are_strays(us: ArrayLike) -> Bools:
    """Which latencies, by tokens, contradict both that are beside them, [rows]."""
    logs = np.log(np.asarray(us, dtype=np.float64))
    strays = np.zeros(len(logs), dtype=bool)
    if len(logs) > 2:
        apart = np.stack([logs[1:-1] - logs[:-2], logs[1:-1] - logs[2:]])
        strays[1:-1] = np.abs(apart).min(axis=0) > np.log(STRAY)
        strays[1:-1] &= apart[0] * apart[1] > 0.0
    return strays


def columns(tokens: Floats, union: Floats) -> Floats:
    ramps = [np.maximum(tokens - knot, 0.0) for knot in TOKEN_KNOTS]
    return np.stack([np.ones(len(tokens)), union, tokens, *ramps], axis=1)


def fitted(design: Floats, us: Floats) -> Floats:
    relative = design / us[:, None]
    size = np.maximum(np.linalg.norm(relative, axis=0), 1e-12)
    solution: Floats = nnls(relative / size, np.ones(len(us)))[0] / size
    return solution


def law(layer: ExpertRows, others: Sequence[ExpertRows]) -> Floats:
    """Microseconds per unit of each of `columns`, by the kernel's other layers."""
    share = np.median([other.bandwidth_share for other in others])
    base = np.median([other.coefficients[0] for other in others])
    work = [other.coefficients[2:] / _work(other.pair) for other in others]
    read = layer.pair.bytes_per_expert / (share * layer.peak_gbps) / 1e3
    return np.array([base, read, *np.median(work, axis=0) * _work(layer.pair)])


def _left_out(layer: ExpertRows, layers: Sequence[ExpertRows]) -> Floats:
    rest = [other for other in layers if other.pair != layer.pair]
    sizes = [other for other in rest if other.pair.shape != layer.pair.shape]
    us = layer.cold["us"].to_numpy(float)
    error: Floats = np.abs(layer.design @ law(layer, sizes or rest) / us - 1.0)
    return error


def _work(pair: KernelKey) -> float:
    return pair.bytes_per_expert * pair.shape[2]


@lru_cache(maxsize=4096)
def balanced_union(
    tokens: int, experts: int, top_k: int, ep: int = 1, grouped: bool = False
) -> int:
    """Distinct experts of the first of `ep` ranks under balanced routing."""
    wanted = _wanted(tokens, experts, top_k)
    counts = (wanted[:, :, None] == np.arange(experts)).sum(axis=1)
    if grouped:
        counts = np.where(_in_kept_groups(counts), counts, -1)
    # A stable sort: ties go to the lowest expert, as in a top-k.
    chosen = np.argsort(-counts, axis=1, kind="stable")[:, :top_k]
    return len(np.unique(chosen[chosen < experts // ep]))


def _wanted(tokens: int, experts: int, top_k: int) -> Ints:
    stride = ceil(experts / top_k)
    start = np.arange(tokens, dtype=np.float32)[:, None]
    if tokens < stride:
        start = start * np.float32(stride) / np.float32(tokens)
    choice = np.arange(top_k, dtype=np.float32)[None, :] * np.float32(stride)
    wanted: Ints = np.floor((start + choice) % experts).astype(np.int64)
    return wanted


def _in_kept_groups(counts: Ints) -> Bools:
    """Experts in kept groups, bool [tokens, experts]; their best two vote."""
    tokens, experts = counts.shape
    ranked = np.sort(counts.reshape(tokens, GROUPS, -1), axis=2)
    votes = ranked[:, :, -2:].sum(axis=2)
    kept = np.argsort(-votes, axis=1, kind="stable")[:, :KEPT]
    group = np.arange(experts) // (experts // GROUPS)
    inside: Bools = (group[None, :, None] == kept[:, None, :]).any(axis=2)
    return inside
