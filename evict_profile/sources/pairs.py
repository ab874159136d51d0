"""What can be composed from a source: pairs, beside the models that have a file.

A pair is what rows of the experts' kernel must share to cover one thing: GPU, engine
and version, kernel, data type, shape and sharding.
"""

from itertools import count
from typing import NamedTuple

import numpy as np
from packaging.version import Version

from evict_profile.config.model import ModelSpec
from evict_profile.errors import ConfigError
from evict_profile.io import data_root, nearest
from evict_profile.physics import parameters
from evict_profile.records import read_mapping
from evict_profile.sources.aiconfigurator import Source, gpu_named
from evict_profile.sources.unions import RoutingRule, router_of
from evict_profile.table.search import DTYPES

NEAREST = 3
ENGINES = ("sglang", "trtllm", "vllm")
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

KEY = [
    "kernel_source",
    "moe_dtype",
    *("hidden_size", "inter_size", "topk", "num_experts"),
    *("moe_tp_size", "moe_ep_size"),
]
"""Columns that tell the pairs of one file apart."""


class KernelKey(NamedTuple):
    """What rows must share to cover one thing.

    `kernel` and the experts' `dtype` are named as in the source; `shape` is hidden
    size, width of an expert, top-k and experts; `tp` ranks cut each expert, and `ep`
    groups of ranks share the experts out.
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
        """`tp` and `ep` in one word, which messages name."""
        return f"{self.tp} x {self.ep}"

    @property
    def router(self) -> RoutingRule:
        return router_of(self.engine, self.version, self.kernel, self.shape)

    @property
    def is_known(self) -> bool:
        """Whether the bytes of a weight, the cache and the router are known."""
        groups, experts = self.router.groups, self.shape[3]
        grouped = groups == 1 or (experts % groups == 0 and experts > groups)
        known = self.dtype in BYTES_PER_VALUE and self.gpu in L2_MB
        return known and grouped and experts % self.ep == 0


def check_asked(model: ModelSpec, gpu: str, engine: str, dtype: str, tp: int) -> None:
    """Refuse what no rows can be of, before they are read or downloaded."""
    name, heads = gpu_named(gpu, tuple(L2_MB)), model.attention.num_heads
    if engine not in ENGINES:
        raise ConfigError(
            f"--engine {engine}: there are rows of {', '.join(ENGINES)}"
            f"{nearest(engine, ENGINES)}; name one of them"
        )
    if heads % tp:
        raise ConfigError(
            f"--tp {tp}: does not divide the {heads} attention heads of {model.name}; "
            "give a number that does"
        )
    check_memory(model, name, dtype, tp)


def check_memory(model: ModelSpec, gpu: str, dtype: str, gpus: int) -> None:
    """Refuse weights that GPUs cannot hold, where their memory is known.

    At the least: all weights in the experts' data type, without cache and activations.
    """
    memory_gb = read_mapping(data_root() / "configs" / "gpu_memory.yaml").get(gpu)
    value_bytes = BYTES_PER_VALUE.get(DTYPES.get(dtype, dtype))
    if not memory_gb or not value_bytes:
        return
    weights_gb = parameters(model, model.moe.num_experts) * value_bytes / 2**30
    if weights_gb > gpus * memory_gb:
        fewest = next(2**i for i in count() if weights_gb <= 2**i * memory_gb)
        raise ConfigError(
            f"{model.name} in {dtype} does not fit on {gpus} {gpu}: its weights alone "
            f"take {weights_gb:,.0f} GB, without cache and activations, and each GPU "
            f"has {memory_gb} GB; give --tp {fewest} or more, or a smaller --dtype"
        )


def pairs(
    source: Source,
    gpu: str | None = None,
    engine: str | None = None,
    model: ModelSpec | None = None,
) -> list[KernelKey]:
    """All pairs, of one GPU, engine or model where they are named."""
    found = [
        pair
        for name in ([source.gpu(gpu)] if gpu else source.gpus)
        for own, version in source.engines(name, "moe")
        if engine in (None, own)
        for pair in _pairs_of(source, name, own, version)
    ]
    if not found:
        raise ConfigError(
            f"no rows of {gpu or 'any GPU'} under {engine} whose unions are known; see "
            "what there is with: evict-profile compose --list"
        )
    if model is None:
        return found
    wanted = shape_of(model)
    if own := [pair for pair in found if pair.shape == wanted]:
        return own

    def far(shape: tuple[int, ...]) -> float:
        return float(np.abs(np.log(np.divide(shape, wanted))).sum())

    near = sorted({pair.shape for pair in found}, key=far)[:NEAREST]
    raise ConfigError(
        f"no rows of {model.name}, whose MoE layer is {_words(wanted)}; the nearest "
        f"are {' | '.join(map(_words, near))}: see evict-profile compose --list"
    )


def _pairs_of(source: Source, gpu: str, engine: str, version: str) -> list[KernelKey]:
    """Those in the rows of one engine on one GPU whose unions are known exactly."""
    rows = source.rows(gpu, "moe", engine, version)
    exact = rows[rows["distribution"] == "balanced"]
    found = (
        KernelKey(gpu, engine, version, kernel, dtype, tuple(shape), tp, ep)
        for kernel, dtype, *shape, tp, ep in exact[KEY].drop_duplicates().to_numpy()
    )
    return sorted(pair for pair in found if pair.is_known)


def shape_of(model: ModelSpec) -> tuple[int, int, int, int]:
    """Hidden size, width of an expert, top-k and experts: what rows are keyed by."""
    moe = model.moe
    return model.expert_hidden, moe.expert_width, moe.top_k, moe.num_experts


def the_pair(
    source: Source,
    model: ModelSpec,
    gpu: str,
    engine: str,
    dtype: str,
    *,
    version: str | None = None,
    tp: int = 1,
    ep: int = 1,
    kernel: str | None = None,
) -> KernelKey:
    """The one pair that is named, of the newest version where none is.

    `tp` counts all GPUs, and `ep` the groups of them that share out the experts.
    """
    if tp % ep:
        raise ConfigError(f"--ep {ep}: must divide --tp {tp}, all GPUs")
    found = pairs(source, gpu, engine, model)
    found = _filter_or_fail(found, "dtype", DTYPES.get(dtype, dtype))
    newest = max((pair.version for pair in found), key=Version)
    found = _filter_or_fail(found, "version", version or newest, "engine-version")
    if kernel:
        found = _filter_or_fail(found, "kernel", kernel)
    found = _filter_or_fail(
        found, "sharding", f"{tp // ep} x {ep}", "tp over --ep x --ep"
    )
    if len(found) > 1:
        kernels = " | ".join(pair.kernel for pair in found)
        raise ConfigError(f"several kernels were measured; add --kernel: {kernels}")
    return found[0]


def _filter_or_fail(
    found: list[KernelKey], field: str, value: str, option: str = ""
) -> list[KernelKey]:
    if own := [pair for pair in found if getattr(pair, field) == value]:
        return own
    there = ", ".join(sorted({getattr(pair, field) for pair in found}))
    raise ConfigError(
        f"--{option or field}: no rows of {value}, only of {there}; choose one of them"
    )


def _words(shape: tuple[int, ...]) -> str:
    hidden, width, top_k, experts = shape
    return f"hidden {hidden}, experts {experts} of width {width}, top-{top_k}"
