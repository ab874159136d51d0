"""Latency of a forward's parts other than routed experts.

No public row has n queries of one request over one cache. Rows of decoding have one
query per sequence; they give a lower bound (one query per request) and an upper bound
(a cache per query). The estimate is their geometric mean. Norms take the source's
constant for a small kernel. Attention weights, head and router stay bf16 where experts
have four bits.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from evict_profile.config.model import ModelSpec
from evict_profile.errors import ConfigError
from evict_profile.sources.aiconfigurator import Source
from evict_profile.sources.curves import AttentionLatency, Curve, GemmLatency
from evict_profile.sources.pairs import KernelKey

BF16 = "bfloat16"
ATTENTION_DTYPES = {"fp8": "fp8", "fp8_block": "fp8_block"}
MLP_DTYPES = {**ATTENTION_DTYPES, "nvfp4": "nvfp4"}
"""Of products, by the experts' data type; others are bf16."""

ALL_REDUCES, NORMS = 2, 2
"""Per layer: after attention and after the MLP; before each."""

NOT_INCLUDED = (
    "launch gaps and the host",
    "rotary embedding, query and key norms, writing the cache",
    "the router's top-k, sampling, drafting, building the tree",
)
"""What no row covers."""


class Interval(NamedTuple):
    """Microseconds."""

    low: float
    us: float
    high: float


@dataclass(frozen=True)
class Parts:
    """Latencies on one kernel's GPU, engine and sharding.

    `substituted_versions` names, by operation, the engine version whose rows are used.
    """

    source: Source
    pair: KernelKey
    model: ModelSpec
    substituted_versions: dict[str, str] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """GPUs that share attention and dense products."""
        return self.pair.tp * self.pair.ep

    @property
    def attention_dtype(self) -> str:
        return ATTENTION_DTYPES.get(self.pair.dtype, BF16)

    @property
    def mlp_dtype(self) -> str:
        return MLP_DTYPES.get(self.pair.dtype, BF16)

    @cached_property
    def attention_kernel(self) -> str:
        return str(self._attention_rows(0)["kernel_source"].iloc[0])

    def moe_layer(self, tokens: int) -> dict[str, float]:
        """Microseconds of each part of a MoE layer, without experts and attention."""
        moe, hidden = self.model.moe, self.model.hidden_size
        router = self._products[BF16].at(tokens, moe.num_experts, hidden)
        parts = {**self._around(tokens), "router": router}
        if moe.shared_width:
            parts["shared experts"] = self._mlp(tokens, moe.shared_width)
        if latent := moe.expert_hidden:
            at = self._products[self.mlp_dtype].at
            ways = at(tokens, latent, hidden) + at(tokens, hidden, latent)
            parts["into experts and back"] = ways
        return parts

    def dense_layer(self, tokens: int) -> dict[str, float]:
        """Microseconds of each part of a layer without experts."""
        width = self.model.dense_width
        dense = {"dense": self._mlp(tokens, width)} if width else {}
        return {**self._around(tokens), **dense}

    def head(self, tokens: int) -> float:
        """Embedding, final norm and head of all tokens."""
        vocabulary = -(-self.model.vocab_size // self.ranks)
        product = self._products[BF16].at(tokens, vocabulary, self.model.hidden_size)
        return product + 2 * self._norm(tokens)

    def attention(self, tokens: int, context: int, batch: int) -> Interval:
        """Attention of a layer, mean over all kinds of layers."""
        ends = [self._attention_us(sequences, context) for sequences in (batch, tokens)]
        return Interval(min(ends), float(np.sqrt(ends[0] * ends[1])), max(ends))

    def slowdown(self, dtype: str) -> float:
        """Quantised over bf16 products of one token, median over sizes."""
        one = self._rows("gemm").query("m == 1")
        medians = one.groupby(["gemm_dtype", "n", "k"])["us"].median()
        return float((medians[dtype] / medians[BF16]).median())

    def _around(self, tokens: int) -> dict[str, float]:
        parts = {"norms": NORMS * self._norm(tokens)}
        if self.ranks > 1:
            elements = tokens * self.model.hidden_size
            parts["all-reduce"] = ALL_REDUCES * self._all_reduce.at(elements)
        if self._attention_operation != "mla module":
            products = self._products[self.attention_dtype]
            sizes = self._attention_sizes()
            parts["attention products"] = sum(products.at(tokens, *s) for s in sizes)
        if self._attention_operation == "mla":
            parts["latent products"] = sum(c.at(tokens) for c in self._latent_products)
        return self._with_other_layers(parts, tokens)

    def _with_other_layers(
        self, parts: dict[str, float], tokens: int
    ) -> dict[str, float]:
        """Mean over layers; other kinds count by a product of their weights."""
        model = self.model
        if not model.other_layers:
            return parts
        share, hidden = model.full_layers / model.num_layers, model.hidden_size
        mean = {
            name: us * share if name.endswith(" products") else us
            for name, us in parts.items()
        }
        products = self._products[self.attention_dtype]
        for other in model.other_layers:
            if outputs := other.weights // hidden // self.ranks:
                us = products.at(tokens, outputs, hidden)
                mean[f"{other.kind} products"] = us * other.layers / model.num_layers
        return mean

    def _mlp(self, tokens: int, width: int) -> float:
        """An MLP as two products, the first with its gate."""
        hidden, own = self.model.hidden_size, width // self.ranks
        products = self._products[self.mlp_dtype]
        up = products.at(tokens, (1 + self.model.moe.gated) * own, hidden)
        return up + products.at(tokens, hidden, own)

    def _norm(self, tokens: int) -> float:
        """A launch, and two reads and two writes of every token's bf16 values."""
        gpu = self.source.facts(self.pair.gpu)
        moved = 4 * 2 * tokens * self.model.hidden_size
        return gpu.launch_us + moved / gpu.bandwidth_gbps / 1e3

    def _attention_us(self, sequences: int, context: int) -> float:
        a, model = self.model.attention, self.model
        us = self._surfaces[0].at(sequences, context)
        if a.sliding_window:
            windowed = self._windowed_us(a.sliding_window, sequences, context)
            us = (windowed + (a.sliding_every - 1) * us) / a.sliding_every
        if not model.other_layers:
            return us
        others = sum(
            other.layers * self._windowed_us(other.window, sequences, context)
            for other in model.other_layers
            if other.window
        )
        return (model.full_layers * us + others) / model.num_layers

    def _windowed_us(self, window: int, sequences: int, context: int) -> float:
        return self._surfaces[window].at(sequences, min(context, window))

    @property
    def _heads(self) -> dict[str, int]:
        """Heads of one rank, by column."""
        a, ranks = self.model.attention, self.ranks
        kv_heads = max(1, a.num_kv_heads // ranks)
        return {"num_heads": a.num_heads // ranks, "num_key_value_heads": kv_heads}

    def _attention_sizes(self) -> list[tuple[int, int]]:
        """(outputs, inputs) of the products before and after attention's kernel."""
        a, hidden = self.model.attention, self.model.hidden_size
        heads, kv_heads = self._heads.values()
        values, keys = heads * a.head_dim, a.qk_head_dim or a.head_dim
        output, gate = (hidden, values), values if a.output_gate else 0
        if a.kind != "mla":
            own = heads * keys + kv_heads * (keys + a.head_dim)
            return [(own + gate, hidden), output]
        latent = a.q_lora_rank + a.kv_lora_rank + a.qk_rope_dim + gate
        query = (heads * (keys + a.qk_rope_dim), a.q_lora_rank or hidden)
        return [(latent, hidden), query, output]

    @property
    def _attention_operation(self) -> str:
        """SGLang's rows of latent attention lack its products."""
        if self.model.attention.kind != "mla":
            return "attention"
        return "mla" if self.pair.engine == "sglang" else "mla module"

    @cached_property
    def _surfaces(self) -> dict[int, AttentionLatency]:
        """Attention by sliding window, 0 for none."""
        windows = {0, self.model.attention.sliding_window}
        windows |= {other.window for other in self.model.other_layers}
        return {w: AttentionLatency.of(self._attention_rows(w)) for w in windows}

    def _attention_rows(self, window: int) -> pd.DataFrame:
        operation, heads = self._attention_operation, self._heads["num_heads"]
        filters: dict[str, dict[str, Any]] = {
            "attention": {**self._heads, "head_dim": self.model.attention.head_dim},
            "mla": {"num_heads": heads},
            "mla module": {"num_heads": heads, "gemm_type": self.attention_dtype},
        }
        rows = self._rows(operation, **filters[operation])
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
        """By elements, in a captured graph where that was measured."""
        rows = self._rows("all-reduce", num_gpus=self.ranks, allreduce_dtype=BF16)
        captured = rows[rows["kernel_source"].str.endswith("_graph")]
        return Curve.of(rows if captured.empty else captured, "message_size")

    @cached_property
    def _latent_products(self) -> list[Curve]:
        heads = self._heads["num_heads"]
        rows = self._rows("mla bmm", num_heads=heads, bmm_dtype=BF16)
        return [Curve.of(own, "num_tokens") for _, own in rows.groupby("op_name")]

    @cached_property
    def _products(self) -> dict[str, GemmLatency]:
        dtypes = {BF16, self.attention_dtype, self.mlp_dtype}
        return {d: GemmLatency.of(self._rows("gemm", gemm_dtype=d)) for d in dtypes}

    def _rows(self, operation: str, **wanted: Any) -> pd.DataFrame:
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
