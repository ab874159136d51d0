"""Latency of a MoE layer's experts from the rows of one kernel: a + b U + c tokens.

On "balanced" rows U grows with the tokens until all experts are active. U and tokens
are identified only if rows before and after that point exist.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.optimize import nnls

from evict_profile.sources.aiconfigurator import Source
from evict_profile.sources.pairs import KEY, L2_MB, KernelKey
from evict_profile.sources.unions import balanced_union, power_law_union
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

POWER_LAWS = {"power_law_1.01": 1.01, "power_law_1.2": 1.2}
MAX_POWER_LAW_TOKENS = 128


@dataclass(frozen=True)
class ExpertRows:
    pair: KernelKey
    rows: pd.DataFrame
    peak_gbps: float

    @classmethod
    def of(cls, source: Source, pair: KernelKey) -> "ExpertRows":
        rows = source.rows(pair.gpu, "moe", pair.engine, pair.version)
        layers = _rows_by_layer(source, pair.gpu, pair.engine, pair.version)
        own = layers.get((pair.kernel, pair.dtype, *pair.shape, pair.tp, pair.ep))
        rows = rows.iloc[:0] if own is None else rows.iloc[own]
        return cls(pair, rows, source.facts(pair.gpu).bandwidth_gbps)

    @cached_property
    def balanced(self) -> pd.DataFrame:
        """One row per token count, with exact `union` and `cold`."""
        _, _, top_k, experts = self.pair.shape
        facts = {"experts": experts, "top_k": top_k}
        router, ep = self.pair.router, self.pair.ep
        union = partial(balanced_union, **facts, ep=ep, router=router)
        return self._medians("balanced", MAX_TOKENS, union)

    @cached_property
    def cold(self) -> pd.DataFrame:
        return self.balanced[self.balanced["cold"]]

    @cached_property
    def routings(self) -> pd.DataFrame:
        """Cold rows of random routings at their mean unions; not fitted."""
        _, _, top_k, experts = self.pair.shape
        union = partial(power_law_union, experts=experts, top_k=top_k)
        rows = pd.concat(
            [
                self._medians(name, MAX_POWER_LAW_TOKENS, partial(union, exponent=by))
                for name, by in POWER_LAWS.items()
            ],
            ignore_index=True,
        )
        return rows[rows["cold"]]

    @property
    def strays(self) -> int:
        """Rows that are left out, since both rows beside them contradict them."""
        routings = self.rows["distribution"].unique()
        return sum(int(are_strays(self._by_tokens(each)).sum()) for each in routings)

    @property
    def identified(self) -> bool:
        """Three unions and a plateau, which U and tokens need to be identified."""
        unions = self.cold["union"]
        return unions.nunique() >= 3 and bool((unions == unions.max()).sum() > 1)

    @property
    def nearest(self) -> tuple["ExpertRows", ...]:
        """Other layers whose rows cost this one."""
        return ()

    @property
    def origin(self) -> str:
        """The rows that cost this layer, in words."""
        unions = sorted({int(union) for union in self.cold["union"]})
        read = f"{len(self.cold)} of {len(self.balanced)} rows were read from memory"
        return f"{read}, unions {unions}"

    @cached_property
    def coefficients(self) -> Floats:
        """Microseconds per unit of each of `columns`, float64 [columns]."""
        return fitted(self.design(self.cold), self.cold["us"].to_numpy())

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
        """Relative error of each cold row predicted from the others, [rows]."""
        design, us = self.design(self.cold), self.cold["us"].to_numpy()
        errors = np.empty(len(us))
        for row in range(len(us)):
            others = np.arange(len(us)) != row
            errors[row] = design[row] @ fitted(design[others], us[others]) / us[row]
        return np.abs(errors - 1.0)

    def off_diagonal(self) -> Floats:
        """Relative error of each row of another routing, float64 [rows]."""
        predicted = self.design(self.routings) @ self.coefficients
        error: Floats = np.abs(predicted / self.routings["us"].to_numpy() - 1.0)
        return error

    def design(self, rows: pd.DataFrame) -> Floats:
        return columns(rows["num_tokens"].to_numpy(float), rows["union"].to_numpy())

    def _medians(
        self, distribution: str, most: int, union: Callable[[int], float]
    ) -> pd.DataFrame:
        """Median latency by tokens, with `union` and `cold`."""
        us = self._by_tokens(distribution)
        us = us[~are_strays(us)]
        rows = us[us.index <= most].reset_index()
        unions = np.array([union(int(n)) for n in rows["num_tokens"]], dtype=np.float64)
        read = unions * self.pair.bytes_per_expert
        cache = 1e6 * L2_MB[self.pair.gpu]
        return rows.assign(union=unions, cold=read > COLD * cache)

    def _by_tokens(self, distribution: str) -> "pd.Series[float]":
        rows = self.rows[self.rows["distribution"] == distribution]
        return rows.groupby("num_tokens")["us"].median()


@cache
def _rows_by_layer(
    source: Source, gpu: str, engine: str, version: str
) -> Mapping[Hashable, Ints]:
    """Places of each layer's rows in one file."""
    groups = source.rows(gpu, "moe", engine, version).groupby(KEY).indices
    return {key: np.asarray(at) for key, at in groups.items()}


def are_strays(us: ArrayLike) -> Bools:
    """Which latencies, by tokens, contradict both that are beside them, [rows]."""
    logs = np.log(np.asarray(us, dtype=np.float64))
    found = np.zeros(len(logs), dtype=bool)
    if len(logs) > 2:
        apart = np.stack([logs[1:-1] - logs[:-2], logs[1:-1] - logs[2:]])
        found[1:-1] = np.abs(apart).min(axis=0) > np.log(STRAY)
        found[1:-1] &= apart[0] * apart[1] > 0.0
    return found


def columns(tokens: Floats, union: Floats) -> Floats:
    ramps = [np.maximum(tokens - knot, 0.0) for knot in TOKEN_KNOTS]
    return np.stack([np.ones(len(tokens)), union, tokens, *ramps], axis=1)


def fitted(design: Floats, us: Floats) -> Floats:
    """Non-negative least squares on relative residuals."""
    relative = design / us[:, None]
    size = np.maximum(np.linalg.norm(relative, axis=0), 1e-12)
    solution: Floats = nnls(relative / size, np.ones(len(us)))[0] / size
    return solution
