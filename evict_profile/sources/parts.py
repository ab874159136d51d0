"""Latency of a forward's parts other than routed experts.

Products, norms and all-reduces of a layer, and the head; `attention` has that. Norms
take the source's constant for a small kernel. Attention weights, head and router stay
bf16 where experts have four bits.
"""

from dataclasses import dataclass
from functools import cached_property

from evict_profile.config.model import ModelSpec
from evict_profile.sources.aiconfigurator import Source
from evict_profile.sources.attention import MLA, MODULE, Attention
from evict_profile.sources.pairs import KernelKey
from evict_profile.sources.rows import BF16, Curve, GemmLatency, KernelRows, Latency

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


@dataclass(frozen=True)
class Parts:
    source: Source
    pair: KernelKey
    model: ModelSpec

    @cached_property
    def rows(self) -> KernelRows:
        return KernelRows(self.source, self.pair)

    @cached_property
    def attention(self) -> Attention:
        return Attention(self.rows, self.model, self.ranks, self.attention_dtype)

    @property
    def ranks(self) -> int:
        return self.pair.tp * self.pair.ep

    @property
    def attention_dtype(self) -> str:
        return ATTENTION_DTYPES.get(self.pair.dtype, BF16)

    @property
    def mlp_dtype(self) -> str:
        return MLP_DTYPES.get(self.pair.dtype, BF16)

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
        width = self.model.dense_width
        dense = {"dense": self._mlp(tokens, width)} if width else {}
        return {**self._around(tokens), **dense}

    def head(self, tokens: int) -> float:
        vocabulary = -(-self.model.vocab_size // self.ranks)
        product = self._products[BF16].at(tokens, vocabulary, self.model.hidden_size)
        return product + 2 * self._norm(tokens)

    def _around(self, tokens: int) -> dict[str, float]:
        parts = {"norms": NORMS * self._norm(tokens)}
        if self.ranks > 1:
            elements = tokens * self.model.hidden_size
            parts["all-reduce"] = ALL_REDUCES * self._all_reduce.at(elements)
        return {**parts, **self._mixing_products(tokens)}

    def _mixing_products(self, tokens: int) -> dict[str, float]:
        model, parts = self.model, {}
        products, share = self._products[self.attention_dtype], model.full_layers
        if share and self.attention.operation != MODULE:
            sizes = self._attention_sizes()
            parts["attention"] = share * sum(products.at(tokens, *s) for s in sizes)
        if share and self.attention.operation == MLA:
            parts["latent"] = share * sum(us(tokens) for us in self._latent_products)
        for other in model.other_layers:
            outputs = other.weights // model.hidden_size // self.ranks
            if outputs:
                us = products.at(tokens, outputs, model.hidden_size)
                parts[other.kind] = other.layers * us
        return {f"{name} products": us / model.num_layers for name, us in parts.items()}

    def _mlp(self, tokens: int, width: int) -> float:
        hidden, width_per_rank = self.model.hidden_size, width // self.ranks
        products = self._products[self.mlp_dtype]
        up = products.at(tokens, (1 + self.model.moe.gated) * width_per_rank, hidden)
        return up + products.at(tokens, hidden, width_per_rank)

    def _norm(self, tokens: int) -> float:
        """A launch, and two reads and two writes of bf16; hyper-connections: their
        bytes.
        """
        streams = self.model.residual_streams
        if streams > 1:
            self.rows.stand_ins["hyper-connections"] = "their bytes"
        moved = 4 * 2 * tokens * self.model.hidden_size * streams
        return self.rows.moved_us(moved)

    def _attention_sizes(self) -> list[tuple[int, int]]:
        a, hidden = self.model.attention, self.model.hidden_size
        heads, kv_heads = self.attention.heads.values()
        values, keys = heads * a.head_dim, a.qk_head_dim or a.head_dim
        output, gate = (hidden, values), values if a.output_gate else 0
        if a.kind != "mla":
            outputs = heads * keys + kv_heads * (keys + a.head_dim)
            return [(outputs + gate, hidden), output]
        latent = a.q_lora_rank + a.kv_lora_rank + a.qk_rope_dim + gate
        query = (heads * (keys + a.qk_rope_dim), a.q_lora_rank or hidden)
        return [(latent, hidden), query, output]

    @cached_property
    def _all_reduce(self) -> Curve:
        rows = self.rows.of("all-reduce", num_gpus=self.ranks, allreduce_dtype=BF16)
        captured = rows[rows["kernel_source"].str.endswith("_graph")]
        return Curve.of(rows if captured.empty else captured, "message_size")

    @cached_property
    def _latent_products(self) -> list[Latency]:
        heads = {"num_heads": self.attention.heads["num_heads"]}
        return [
            self.rows.latency(
                "mla bmm", rows, heads, lambda group: Curve.of(group, "num_tokens").at
            )
            for _, rows in self.rows.of("mla bmm", bmm_dtype=BF16).groupby("op_name")
        ]

    @cached_property
    def _products(self) -> dict[str, GemmLatency]:
        dtypes = {BF16, self.attention_dtype, self.mlp_dtype}
        return {d: GemmLatency.of(self.rows.products(d)) for d in dtypes}
