"""The price of a MoE layer's experts, from the rows of one kernel: a + b U + c tokens.

A kernel, device, data type, shape and sharding are a pair's identity; its "balanced"
rows lie on one diagonal, where the union grows with the tokens until all experts are
activated. Before that, time follows both; on the plateau after it, tokens alone. So
the two can be told apart where both stretches were measured, and only there.

Rows whose weights fit into the L2 cache are left out: a benchmark that replays one
layer reads them from the cache, a forward through 48 layers reads them from memory. A
row counts as cold where its weights are half as large again as the cache.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from evict_profile.sources.aiconfigurator import Source
from evict_profile.sources.unions import (
    RoutingRule,
    balanced_union,
    power_law_union,
    router_of,
)
from evict_profile.stats import Bools, Floats

BYTES_PER_VALUE = {
    "bfloat16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "nvfp4": 0.5 + 1 / 16,
    "int4_wo": 0.5 + 1 / 16,
    "w4a16_mxfp4": 0.5 + 1 / 32,
    "w4a8_mxfp4_mxfp8": 0.5 + 1 / 32,
}
"""Of a weight with its share of the scales: one a block of 16 or 32 values."""

UNGATED = {(1024, 2688), (2048, 5120), (2688, 1856), (4096, 2688)}
"""Hidden size and expert width of Nemotron's experts, two matrices each, not three."""

L2_MB = {
    "a100_sxm": 40,
    "b200_sxm": 126,
    "b300_sxm": 126,
    "gb200": 126,
    "gb300": 126,
    "h100_sxm": 50,
    "h200_sxm": 50,
    "l40s": 96,
    "rtx_pro_6000_server": 128,
}
"""Data sheets; the source does not say."""

COLD = 1.5
MAX_TOKENS = 2048
TOKEN_KNOTS = (64, 256, 1024)
"""Where more tokens may begin to cost more: kernels turn from memory to arithmetic."""

POWER_LAWS = {"power_law_1.01": 1.01, "power_law_1.2": 1.2}
MAX_POWER_LAW_TOKENS = 128


class Pair(NamedTuple):
    """What rows must share to price one thing.

    Attributes:
        kernel: as the source names it (`kernel_source`).
        dtype: of the experts' weights, as the source names it.
        shape: hidden size, width of an expert, top-k, experts.
    """

    gpu: str
    engine: str
    version: str
    kernel: str
    dtype: str
    shape: tuple[int, int, int, int]
    tp: int
    ep: int

    @property
    def bytes_per_expert(self) -> float:
        """Weights of one expert that one rank reads."""
        hidden, width, _, _ = self.shape
        matrices = 2 if (hidden, width) in UNGATED else 3
        return matrices * hidden * width / self.tp * BYTES_PER_VALUE[self.dtype]

    @property
    def sharding(self) -> str:
        """How many ranks cut each expert, and how many share them out."""
        return f"{self.tp} x {self.ep}"

    @property
    def router(self) -> RoutingRule:
        """What chose the experts."""
        return router_of(self.engine, self.version, self.kernel, self.shape)


KEY = [
    "kernel_source",
    "moe_dtype",
    *("hidden_size", "inter_size", "topk", "num_experts"),
    *("moe_tp_size", "moe_ep_size"),
]


@dataclass(frozen=True)
class ExpertRows:
    """The rows of one pair, and the price fitted to those that were read cold.

    Attributes:
        rows: all of the pair, with `num_tokens`, `distribution` and `us`.
        peak_gbps: of the memory, from the data sheet.
    """

    pair: Pair
    rows: pd.DataFrame
    peak_gbps: float

    @cached_property
    def balanced(self) -> pd.DataFrame:
        """One row a token count, with its exact union and whether it was read cold."""
        _, _, top_k, experts = self.pair.shape
        rows = self._medians("balanced", MAX_TOKENS)
        unions = [
            balanced_union(int(n), experts, top_k, self.pair.ep, self.pair.router)
            for n in rows["num_tokens"]
        ]
        rows = rows.assign(union=np.array(unions, dtype=np.float64))
        return rows.assign(cold=self._is_cold(rows["union"].to_numpy()))

    @cached_property
    def cold(self) -> pd.DataFrame:
        """The balanced rows that were read from memory."""
        return self.balanced[self.balanced["cold"]]

    @cached_property
    def routings(self) -> pd.DataFrame:
        """Cold rows of the random routings, at their mean unions; never fitted."""
        _, _, top_k, experts = self.pair.shape
        found = []
        for name, exponent in POWER_LAWS.items():
            rows = self._medians(name, MAX_POWER_LAW_TOKENS)
            unions = [
                power_law_union(int(n), experts, top_k, exponent)
                for n in rows["num_tokens"]
            ]
            found.append(rows.assign(union=np.array(unions, dtype=np.float64)))
        rows = pd.concat(found, ignore_index=True)
        return rows[self._is_cold(rows["union"].to_numpy())]

    @property
    def identified(self) -> bool:
        """Whether union and tokens can be told apart: three unions, and a plateau."""
        unions = self.cold["union"]
        return unions.nunique() >= 3 and bool((unions == unions.max()).sum() > 1)

    @cached_property
    def coefficients(self) -> Floats:
        """Microseconds for one of each column of `_columns`, float64 [columns]."""
        return _fitted(self._design(self.cold), self.cold["us"].to_numpy())

    @property
    def bandwidth_share(self) -> float:
        """What the slope in the union implies, over the memory's peak."""
        us_per_expert = self.coefficients[1]
        if us_per_expert <= 0.0:
            return np.inf
        gbps = self.pair.bytes_per_expert / us_per_expert / 1e3
        return float(gbps / self.peak_gbps)

    def us(self, tokens: Floats, union: Floats) -> Floats:
        """Price of a layer's experts, of a union over all ranks, float64 [places]."""
        price: Floats = _columns(tokens, union / self.pair.ep) @ self.coefficients
        return price

    def held_out(self) -> Floats:
        """Relative error of each cold row predicted from the others, [rows]."""
        design, us = self._design(self.cold), self.cold["us"].to_numpy()
        errors = np.empty(len(us))
        for row in range(len(us)):
            others = np.arange(len(us)) != row
            errors[row] = design[row] @ _fitted(design[others], us[others]) / us[row]
        return np.abs(errors - 1.0)

    def off_diagonal(self) -> Floats:
        """Relative error of each row of another routing, float64 [rows]."""
        rows = self.routings
        price = self._design(rows) @ self.coefficients
        error: Floats = np.abs(price / rows["us"].to_numpy() - 1.0)
        return error

    def _design(self, rows: pd.DataFrame) -> Floats:
        return _columns(rows["num_tokens"].to_numpy(float), rows["union"].to_numpy())

    def _is_cold(self, unions: Floats) -> Bools:
        cache = 1e6 * L2_MB[self.pair.gpu]
        cold: Bools = unions * self.pair.bytes_per_expert > COLD * cache
        return cold

    def _medians(self, distribution: str, most: int) -> pd.DataFrame:
        rows = self.rows[self.rows["distribution"] == distribution]
        rows = rows[rows["num_tokens"] <= most]
        return rows.groupby("num_tokens")["us"].median().reset_index()


def experts_of(
    source: Source, gpu: str, engine: str, version: str
) -> Iterator[ExpertRows]:
    """Every pair in the rows of one engine on one GPU whose union is known exactly."""
    peak_gbps = source.facts(gpu).bandwidth_gbps
    rows = source.rows(gpu, "moe", engine, version)
    for key, own in rows.groupby(KEY, observed=True):
        pair = _pair((gpu, engine, version), key)
        if can_be_priced(pair) and "balanced" in own["distribution"].array:
            yield ExpertRows(pair, own, peak_gbps)


def experts_of_pair(source: Source, pair: Pair) -> ExpertRows:
    """The rows of one pair."""
    rows = source.rows(pair.gpu, "moe", pair.engine, pair.version)
    for name, value in zip(KEY, (*pair[3:5], *pair.shape, *pair[6:]), strict=True):
        rows = rows[rows[name] == value]
    return ExpertRows(pair, rows, source.facts(pair.gpu).bandwidth_gbps)


def pairs_of(source: Source, gpu: str, engine: str, version: str) -> list[Pair]:
    """The identities of the same, without their rows."""
    rows = source.rows(gpu, "moe", engine, version)
    exact = rows[rows["distribution"] == "balanced"]
    keys = exact[KEY].drop_duplicates().itertuples(index=False)
    pairs = (_pair((gpu, engine, version), key) for key in keys)
    return sorted(pair for pair in pairs if can_be_priced(pair))


def _pair(where: tuple[str, str, str], key: Any) -> Pair:
    kernel, dtype, hidden, width, top_k, experts, tp, ep = key
    return Pair(*where, kernel, dtype, (hidden, width, top_k, experts), tp, ep)


def can_be_priced(pair: Pair) -> bool:
    """Whether the bytes of a weight, the cache and the router are known."""
    router, experts = pair.router, pair.shape[3]
    grouped = experts % router.groups == 0 and experts > router.groups
    known = pair.dtype in BYTES_PER_VALUE and pair.gpu in L2_MB
    return known and experts % pair.ep == 0 and (router.groups == 1 or grouped)


def _columns(tokens: Floats, union: Floats) -> Floats:
    ramps = [np.maximum(tokens - knot, 0.0) for knot in TOKEN_KNOTS]
    return np.stack([np.ones(len(tokens)), union, tokens, *ramps], axis=1)


def _fitted(design: Floats, us: Floats) -> Floats:
    """Non-negative least squares on relative residuals."""
    relative = design / us[:, None]
    size = np.maximum(np.linalg.norm(relative, axis=0), 1e-12)
    solution: Floats = nnls(relative / size, np.ones(len(us)))[0] / size
    return solution
