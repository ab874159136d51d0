"""Latency of what mixes tokens in a layer: attention, or a recurrent state's update.

Rows of decoding have one query per sequence. Attention of n queries of one request lies
between that of one query per request and that of a cache per query; the estimate is
their geometric mean. A recurrent layer reads a request's state once and keeps one for
each of its n tokens, so that a rejected draft can be undone: KDA's rows of verification
measure that growth, and other recurrent layers take it. Beyond the widest of these rows
latency lies between their line and proportion to n.

Modules (sparse and compressed attention, vLLM's latent attention) hold their products.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np
import pandas as pd

from evict_profile.config.load import known_models, load_model, model_named
from evict_profile.config.model import AttentionSpec, LayerSpec, ModelSpec
from evict_profile.sources.curves import AttentionLatency, Interval, StateLatency
from evict_profile.sources.rows import BF16, KernelRows, Latency

FUSED = ["fused_kda_decode", "kda_fused_decode", "fused_kda_decode_mtp_dspark"]
"""Kernels that hold the convolution; any other is a pair with it."""

HEAD = 128 * 128
"""Values in the state of one head of the rows."""

Cost = Callable[[int, int, int], Interval]
"""Of one layer by tokens, context and batch."""


@dataclass(frozen=True)
class Mixers:
    """Attention and states of a model on one of its ranks."""

    rows: KernelRows
    model: ModelSpec
    ranks: int
    dtype: str
    _kernels: list[str] = field(default_factory=list)

    def at(self, tokens: int, context: int, batch: int) -> Interval:
        """One layer, mean over all of them."""
        found = [(n, cost(tokens, context, batch)) for n, cost in self._costs]
        ends = (sum(n * us[end] for n, us in found) for end in range(3))
        return Interval(*(us / self.model.num_layers for us in ends))

    @property
    def kernel(self) -> str:
        """Of full attention, else of the first kind of layer."""
        return (*self._kernels, "none")[0] if self._costs else "none"

    @property
    def heads(self) -> dict[str, int]:
        """Heads of one rank, by column."""
        a, ranks = self.model.attention, self.ranks
        kv_heads = max(1, a.num_kv_heads // ranks)
        return {"num_heads": a.num_heads // ranks, "num_key_value_heads": kv_heads}

    @property
    def operation(self) -> str:
        """Of full attention. SGLang's rows of latent attention lack its products."""
        if self.model.attention.kind != "mla":
            return "attention"
        return "mla" if self.rows.pair.engine == "sglang" else "mla module"

    @property
    def without_kernels(self) -> tuple[str, ...]:
        """Kinds of layers that have no rows."""
        return tuple(
            other.kind
            for other in self._others
            if not (other.kind in self.modules or self._state_operation(other))
        )

    @cached_property
    def modules(self) -> dict[str, str]:
        """By kind of layer the operation whose rows are of it with its products."""
        sparse = "dsa" if self.model.attention.kind == "mla" else "msa"
        named = {"sparse": f"{sparse} module", "csa": "csa module", "hca": "hca module"}
        kinds = {other.kind for other in self._others}
        if "hca" in kinds:
            # Within its window, a layer of heavily compressed attention sees no more.
            named["sliding"] = "hca module"
        return {k: of for k, of in named.items() if k in kinds and self._sized(of)}

    def reaches(self, context: int, batch: int) -> bool:
        """Whether rows of so many requests, or of the next more, are so long."""
        longest = (each[each.index >= batch] for each in self._longest)
        return all(len(own) and own.iloc[0] >= context for own in longest)

    @cached_property
    def _longest(self) -> list[pd.Series]:
        """By batch the largest context of rows that see the whole context."""
        found = []
        full = [self.operation] * bool(self.model.full_layers)
        for operation in {*self.modules.values(), *full}:
            rows = self.rows.of(operation)
            sizes = {**self.heads, "head_dim": self.model.attention.head_dim}
            for column, size in sizes.items():
                if column in rows:
                    levels = np.sort(rows[column].unique())
                    above = levels[levels >= size]
                    rows = rows[rows[column] == (*above, levels[-1])[0]]
            context = rows["isl"] + rows["step"]
            found.append(context.groupby(rows["batch_size"]).max())
        return found

    def holds_products(self, other: LayerSpec) -> bool:
        """Whether the cost of such a layer contains its products."""
        as_full = other.window and self.operation == "mla module"
        return bool(other.kind in self.modules or as_full)

    @cached_property
    def _costs(self) -> list[tuple[int, Cost]]:
        """Layers of each kind, and the cost of one."""
        full = [(n, self._full()) for n in [self.model.full_layers] if n]
        return [*full, *((other.layers, self._other(other)) for other in self._others)]

    @property
    def _others(self) -> list[LayerSpec]:
        return [other for other in self.model.other_layers if other.kind != "none"]

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
        if operation := self._state_operation(other):
            return self._state_pass(operation, other)
        if module := self.modules.get(other.kind):
            window = other.window if other.kind == "sliding" else None
            return _between(self._module(module), window)
        if other.window:
            return _between(self._attention(other.window), other.window)
        return lambda *_: Interval(0.0, 0.0, 0.0)

    def _attention(self, window: int) -> Latency:
        """By sequences and context, with a sliding window or 0."""

        def made(rows: pd.DataFrame) -> Latency:
            if "window_size" in rows:
                has = (rows["window_size"] == window).any()
                rows = rows[rows["window_size"] == (window if has else 0)]
            rows = self._one_cache(rows)
            rows = rows[rows["kernel_source"] == self._kernels[-1]]
            return AttentionLatency.of(rows).at

        rows, sizes = self.rows.of(self.operation), self.heads
        if self.operation == "attention":
            sizes = {"head_dim": self.model.attention.head_dim, **sizes}
        else:
            del sizes["num_key_value_heads"]
        if self.operation == "mla module":
            rows = self._typed(self.operation, rows)
        return self.rows.latency(self.operation, rows, sizes, made)

    def _module(self, operation: str) -> Latency:
        def made(rows: pd.DataFrame) -> Latency:
            return AttentionLatency.of(self._one_cache(rows)).at

        rows = self.rows.of(operation, model=self._sized(operation))
        rows = self._typed(operation, rows)
        rows = rows[~rows["op_name"].str.endswith("skip_indexer")]
        sizes = {"num_heads": self.heads["num_heads"]}
        return self.rows.latency(operation, rows, sizes, made)

    def _sized(self, operation: str) -> list[str]:
        """Models of an operation's rows that have this one's sizes."""
        if not self.rows.has(operation):
            return []
        own = (self.model.hidden_size, self.model.attention)
        names = self.rows.of(operation)["model"].unique()
        return [name for name in names if _sizes_of(name) == own]

    def _typed(self, operation: str, rows: pd.DataFrame) -> pd.DataFrame:
        there = set(rows["gemm_type"])
        dtype = self.rows.nearest_dtype(operation, self.dtype, there)
        return rows[rows["gemm_type"] == dtype]

    def _one_cache(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Rows with a cache of bf16 where there are any; notes their kernel."""
        own = rows[rows["kv_cache_dtype"] == BF16]
        rows = rows if own.empty else own
        self._kernels.append(str(rows["kernel_source"].mode()[0]))
        return rows

    def _state_operation(self, other: LayerSpec) -> str | None:
        """KDA's rows are of its own layers; gated delta nets stand in for others."""
        own = ["kda", "gdn"] if other.rule == "kda" else ["gdn"]
        return next((name for name in own if other.state and self.rows.has(name)), None)

    def _state_pass(self, operation: str, other: LayerSpec) -> Cost:
        if operation == "gdn" and other.rule != "gated_delta":
            said = f"{other.rule or other.kind} states"
            self.rows.stand_ins[said] = "gated delta net of equal size"
        decode, widest = self._state(operation, other)
        grown = decode
        if operation != "kda" and (engines := self.rows.engines("kda")):
            grown, widest = self._state("kda", other, engines[0])
            self.rows.stand_ins["verification of states"] = f"kda in {engines[0]}"

        def cost(tokens: int, context: int, batch: int) -> Interval:
            width = tokens / batch
            one = decode(1, batch) / grown(1, batch)
            low = one * grown(width, batch)
            high = one * grown(widest, batch) * width / widest
            high = max(low, high) if width > widest else low
            return Interval(low, (low * high) ** 0.5, high)

        return cost

    def _state(
        self, operation: str, other: LayerSpec, engine: str = ""
    ) -> tuple[Latency, int]:
        """By tokens of a sequence and sequences; and the most tokens measured."""
        rows = _passes(self.rows.of(operation, engine))
        sizes = {"num_v_heads": other.state / HEAD / self.ranks}

        def made(own: pd.DataFrame) -> Latency:
            return StateLatency.of(own).at

        us = self.rows.latency(operation, rows, sizes, made)
        return us, int(rows["seq_len"].max())


def _between(us: Latency, window: int | None = None) -> Cost:
    def cost(tokens: int, context: int, batch: int) -> Interval:
        seen = min(context, window or context)
        low, high = sorted(us(sequences, seen) for sequences in (batch, tokens))
        return Interval(low, (low * high) ** 0.5, high)

    return cost


def _passes(rows: pd.DataFrame) -> pd.DataFrame:
    """Microseconds of all kernels of a state's update, by heads, tokens and batch."""
    key = ["num_v_heads", "seq_len", "batch_size"]
    of_steps = rows[rows["phase"] != "context"]
    kernels = of_steps.pivot_table("us", key, "kernel_source", aggfunc="median")
    fused = kernels.reindex(columns=FUSED).min(axis=1)
    pair = kernels.drop(columns=FUSED, errors="ignore").sum(axis=1, min_count=2)
    return fused.fillna(pair).dropna().rename("us").reset_index()


@cache
def _sizes_of(name: str) -> tuple[int, AttentionSpec] | None:
    known = model_named(name, [path.stem for path in known_models()])
    if not known:
        return None
    model = load_model(known)
    return model.hidden_size, model.attention
