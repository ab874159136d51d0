"""What a forward runs beside routed experts, each part priced from its own rows.

Attention has no row with n queries of one request over one cache, which is what
verification runs. Rows of decoding have one query a sequence, and bound it: it costs
no less than one query a request, and no more than if each query had a cache of its
own. The geometric mean is priced, and both ends are kept.

Norms have no rows; the source's own constant for a small kernel stands in. Attention's
weights stay bf16 where experts have four bits, as in published checkpoints; the head
and the router always do.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from evict_profile.config.model import ModelSpec
from evict_profile.errors import ConfigError
from evict_profile.sources.aiconfigurator import Gpu, Source
from evict_profile.sources.curves import Curve, Products, Surface
from evict_profile.sources.pairs import Pair

BF16 = "bfloat16"
ATTENTION_DTYPES = {"fp8": "fp8", "fp8_block": "fp8_block"}
MLP_DTYPES = {**ATTENTION_DTYPES, "nvfp4": "nvfp4"}
"""Of products, by the data type of the experts; others are bf16."""

ALL_REDUCES, NORMS = 2, 2
"""A layer: after attention and after its MLP; before each of them."""

UNPRICED = (
    "launch gaps and the host",
    "rotary embedding, query and key norms, writing the cache",
    "the router's top-k, sampling, drafting, building the tree",
)
"""What no row prices."""


class Bounded(NamedTuple):
    """A latency, and where it may lie, in microseconds."""

    low: float
    us: float
    high: float


@dataclass(frozen=True)
class Parts:
    """Prices of one model's forward on one pair's GPU, engine and shardings.

    Attributes:
        stand_ins: operations whose rows are of another version of the engine.
    """

    source: Source
    pair: Pair
    model: ModelSpec
    stand_ins: dict[str, str] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """GPUs over which attention and dense products are cut."""
        return self.pair.tp * self.pair.ep

    @property
    def attention_dtype(self) -> str:
        """Of attention's products."""
        return ATTENTION_DTYPES.get(self.pair.dtype, BF16)

    @property
    def mlp_dtype(self) -> str:
        """Of the products of dense layers and shared experts."""
        return MLP_DTYPES.get(self.pair.dtype, BF16)

    @cached_property
    def attention_kernel(self) -> str:
        """Whose rows price attention, as the source names it."""
        return str(self._attention_rows(0)["kernel_source"].iloc[0])

    def moe_layer(self, tokens: int) -> dict[str, float]:
        """Microseconds of each part of a MoE layer, less experts and attention."""
        moe = self.model.moe
        router = self._products[BF16].at(
            tokens, moe.num_experts, self.model.hidden_size
        )
        parts = {**self._around(tokens), "router": router}
        if moe.shared_width:
            parts["shared experts"] = self._mlp(tokens, moe.shared_width)
        return parts

    def dense_layer(self, tokens: int) -> dict[str, float]:
        """The same of a layer without experts."""
        return {
            **self._around(tokens),
            "dense": self._mlp(tokens, self.model.dense_width),
        }

    def head(self, tokens: int) -> float:
        """Embedding, final norm and head, of every token that is verified."""
        vocabulary = -(-self.model.vocab_size // self.ranks)
        product = self._products[BF16].at(tokens, vocabulary, self.model.hidden_size)
        return product + 2 * self._norm(tokens)

    def attention(self, tokens: int, context: int, batch: int) -> Bounded:
        """A layer's attention, mean over full and windowed layers."""
        ends = [self._attention_us(sequences, context) for sequences in (batch, tokens)]
        return Bounded(min(ends), float(np.sqrt(ends[0] * ends[1])), max(ends))

    def slowdown(self, dtype: str) -> float:
        """Quantised over bf16 products of one token, median over their sizes."""
        us, plain = (
            self._all_products[self._all_products["gemm_dtype"] == name]
            .query("m == 1")
            .groupby(["n", "k"])["us"]
            .median()
            for name in (dtype, BF16)
        )
        return float((us / plain).median())

    def _around(self, tokens: int) -> dict[str, float]:
        """What a layer runs around attention's kernel and its MLP."""
        parts = {"norms": NORMS * self._norm(tokens)}
        if self.ranks > 1:
            elements = tokens * self.model.hidden_size
            parts["all-reduce"] = ALL_REDUCES * self._all_reduce.at(elements)
        if sizes := self._attention_sizes:
            products = self._products[self.attention_dtype]
            parts["attention products"] = sum(products.at(tokens, *s) for s in sizes)
        if self._is_latent and not self._has_module:
            parts["latent products"] = sum(c.at(tokens) for c in self._latent_products)
        return parts

    def _mlp(self, tokens: int, width: int) -> float:
        """A gated MLP as two products."""
        hidden, own = self.model.hidden_size, width // self.ranks
        products = self._products[self.mlp_dtype]
        return products.at(tokens, 2 * own, hidden) + products.at(tokens, hidden, own)

    def _norm(self, tokens: int) -> float:
        """A launch, and two reads and two writes of every token's bf16 values."""
        moved = 4 * 2 * tokens * self.model.hidden_size
        return self._gpu.launch_us + moved / self._gpu.bandwidth_gbps / 1e3

    def _attention_us(self, sequences: int, context: int) -> float:
        a = self.model.attention
        full = self._surfaces[0].at(sequences, context)
        if not a.sliding_window:
            return full
        seen = min(context, a.sliding_window)
        windowed = self._surfaces[a.sliding_window].at(sequences, seen)
        return (windowed + (a.sliding_every - 1) * full) / a.sliding_every

    @property
    def _is_latent(self) -> bool:
        return self.model.attention.kind == "mla"

    @property
    def _has_module(self) -> bool:
        """Latent attention whose rows hold its products too."""
        return self._is_latent and self.pair.engine != "sglang"

    @property
    def _heads(self) -> int:
        return self.model.attention.num_heads // self.ranks

    @property
    def _kv_heads(self) -> int:
        return max(1, self.model.attention.num_kv_heads // self.ranks)

    @property
    def _attention_sizes(self) -> list[tuple[int, int]]:
        """Outputs and inputs of attention's products that its rows do not hold."""
        a, hidden, heads = self.model.attention, self.model.hidden_size, self._heads
        if self._has_module:
            return []
        output = (hidden, heads * a.head_dim)
        if not self._is_latent:
            return [((heads + 2 * self._kv_heads) * a.head_dim, hidden), output]
        latent = a.q_lora_rank + a.kv_lora_rank + a.qk_rope_dim
        query = (heads * (a.head_dim + a.qk_rope_dim), a.q_lora_rank)
        return [(latent, hidden), query, output]

    @cached_property
    def _gpu(self) -> Gpu:
        return self.source.facts(self.pair.gpu)

    @cached_property
    def _surfaces(self) -> dict[int, Surface]:
        """Attention by sliding window, 0 for none."""
        windows = {0, self.model.attention.sliding_window}
        return {window: Surface.of(self._attention_rows(window)) for window in windows}

    def _attention_rows(self, window: int) -> pd.DataFrame:
        """Of one kernel, the one with most rows of this shape."""
        if self._has_module:
            dtype = self.attention_dtype
            rows = self._only("mla module", num_heads=self._heads, gemm_type=dtype)
        elif self._is_latent:
            rows = self._only("mla", num_heads=self._heads)
        else:
            rows = self._only(
                "attention",
                num_heads=self._heads,
                num_key_value_heads=self._kv_heads,
                head_dim=self.model.attention.head_dim,
            )
        if "window_size" in rows:
            has = (rows["window_size"] == window).any()
            rows = rows[rows["window_size"] == (window if has else 0)]
        own = rows[rows["kv_cache_dtype"] == BF16]
        rows = rows if own.empty else own
        kernel = rows["kernel_source"].mode()[0]
        one: pd.DataFrame = rows[rows["kernel_source"] == kernel]
        return one

    @cached_property
    def _all_reduce(self) -> Curve:
        """Over elements, in a captured graph where that was measured."""
        rows = self._only("all-reduce", num_gpus=self.ranks, allreduce_dtype=BF16)
        captured = rows[rows["kernel_source"].str.endswith("_graph")]
        return Curve.of(rows if captured.empty else captured, "message_size")

    @cached_property
    def _latent_products(self) -> list[Curve]:
        """Into the latent space before attention's kernel, and out of it after."""
        rows = self._only("mla bmm", num_heads=self._heads, bmm_dtype=BF16)
        return [Curve.of(own, "num_tokens") for _, own in rows.groupby("op_name")]

    @cached_property
    def _products(self) -> dict[str, Products]:
        dtypes = {BF16, self.attention_dtype, self.mlp_dtype}
        return {d: Products.of(self._only("gemm", gemm_dtype=d)) for d in dtypes}

    @cached_property
    def _all_products(self) -> pd.DataFrame:
        return self._only("gemm")

    def _only(self, operation: str, **wanted: Any) -> pd.DataFrame:
        """The rows of an operation with these values."""
        where = (self.pair.gpu, operation, self.pair.engine)
        version = self.source.version_for(*where, self.pair.version)
        if version != self.pair.version:
            self.stand_ins[operation] = version
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
