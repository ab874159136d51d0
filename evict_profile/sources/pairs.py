"""Kernels whose public rows can be composed, and the one that a command names."""

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
"""Per weight, with its share of the scales (one per block of 16 or 32)."""

UNGATED = {(1024, 2688), (2048, 5120), (2688, 1856), (4096, 2688)}
"""(hidden size, expert width) of Nemotron's experts, which have two matrices."""

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
"""By data sheets."""

KEY = [
    "kernel_source",
    "moe_dtype",
    *("hidden_size", "inter_size", "topk", "num_experts"),
    *("moe_tp_size", "moe_ep_size"),
]
"""Columns that identify a kernel's rows in one file."""


class KernelKey(NamedTuple):
    """What rows of one expert kernel share.

    `kernel` and `dtype` are named as in the source; `shape` is (hidden size, expert
    width, top-k, experts); `tp` ranks split each expert, `ep` groups of ranks hold all
    experts.
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
        """Bytes of one expert that one rank reads."""
        hidden, width, _, _ = self.shape
        matrices = 2 if (hidden, width) in UNGATED else 3
        return matrices * hidden * width / self.tp * BYTES_PER_VALUE[self.dtype]

    @property
    def sharding(self) -> str:
        return f"{self.tp} x {self.ep}"

    @property
    def router(self) -> RoutingRule:
        return router_of(self.engine, self.version, self.kernel, self.shape)

    @property
    def is_known(self) -> bool:
        """Whether bytes of a weight, cache size and router are known."""
        groups, experts = self.router.groups, self.shape[3]
        grouped = groups == 1 or (experts % groups == 0 and experts > groups)
        known = self.dtype in BYTES_PER_VALUE and self.gpu in L2_MB
        return known and grouped and experts % self.ep == 0


def check_asked(model: ModelSpec, gpu: str, engine: str, dtype: str, tp: int) -> None:
    """Refuse impossible requests before rows are read or downloaded."""
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
    """Refuse weights, all in the experts' data type, that exceed the memory."""
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
    """Kernels of the source, filtered by GPU, engine and model."""
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
    """Kernels of one engine on one GPU with exact unions."""
    rows = source.rows(gpu, "moe", engine, version)
    exact = rows[rows["distribution"] == "balanced"]
    found = (
        KernelKey(gpu, engine, version, kernel, dtype, tuple(shape), tp, ep)
        for kernel, dtype, *shape, tp, ep in exact[KEY].drop_duplicates().to_numpy()
    )
    return sorted(pair for pair in found if pair.is_known)


def shape_of(model: ModelSpec) -> tuple[int, int, int, int]:
    """(hidden size, expert width, top-k, experts)."""
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
    """The one kernel named; the newest version by default. `tp` counts all GPUs."""
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
