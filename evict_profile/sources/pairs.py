"""Kernels whose public rows can be composed, and the one that a command names."""

from functools import cache
from typing import NamedTuple

from packaging.version import Version

from evict_profile.config.model import ModelSpec
from evict_profile.errors import ConfigError
from evict_profile.sources.aiconfigurator import Source
from evict_profile.table.search import DTYPES

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


class Gpu(NamedTuple):
    l2_mb: float
    bandwidth_gbps: float
    device: str


GPUS = {
    "a100_sxm": Gpu(40, 2039.0, "NVIDIA A100-SXM4-80GB"),
    "b200_sxm": Gpu(126, 7700.0, "NVIDIA B200"),
    "b300_sxm": Gpu(126, 7750.0, "NVIDIA B300 SXM6 AC"),
    "gb200": Gpu(126, 8000.0, "NVIDIA GB200"),
    "gb300": Gpu(126, 8000.0, "NVIDIA GB300"),
    "h100_sxm": Gpu(50, 3350.0, "NVIDIA H100 80GB HBM3"),
    "h200_sxm": Gpu(50, 4800.0, "NVIDIA H200"),
    "l40s": Gpu(96, 864.0, "NVIDIA L40S"),
    "rtx_pro_6000_server": Gpu(
        128, 1792.0, "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    ),
}

DEEPSEEK_SHAPE = (7168, 2048, 8, 256)
GROUPS, KEPT = 8, 4
GROUPING_ENGINES = {("sglang", "0.5.14"), ("vllm", "0.24.0")}
"""Engines that group DeepSeek-V3's experts in their rows; by plain unions these would
exceed the memory's bandwidth by 1.4 to 2 times."""

KEY = [
    "kernel_source",
    "moe_dtype",
    *("hidden_size", "inter_size", "topk", "num_experts"),
    *("moe_tp_size", "moe_ep_size"),
]
"""Columns that identify a kernel's rows in one file."""


class KernelKey(NamedTuple):
    """`shape` is (hidden size, expert width, top-k, experts).

    `tp` ranks split each expert; `ep` groups of ranks hold all experts.
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
        hidden, width, _, _ = self.shape
        matrices = 2 if (hidden, width) in UNGATED else 3
        return matrices * hidden * width / self.tp * BYTES_PER_VALUE[self.dtype]

    @property
    def grouped(self) -> bool:
        """TensorRT-LLM's low-latency collector gives every model DeepSeek's router."""
        release = (self.engine, self.version)
        grouping = release in GROUPING_ENGINES and self.shape == DEEPSEEK_SHAPE
        return grouping or "min_latency" in self.kernel

    @property
    def is_known(self) -> bool:
        experts = self.shape[3]
        divides = experts % GROUPS == 0 and experts > GROUPS
        is_known = self.dtype in BYTES_PER_VALUE and self.gpu in GPUS
        return is_known and (divides or not self.grouped) and experts % self.ep == 0


def pairs(source: Source, gpu: str, engine: str) -> list[KernelKey]:
    releases = [v for name, v in source.engines(gpu, "moe") if name == engine]
    kernels = [p for v in releases for p in _pairs_of(source, gpu, engine, v)]
    if kernels:
        return kernels
    raise ConfigError(
        f"no rows of {gpu} under {engine} whose unions are known; see what there is "
        "with: evict-profile estimate"
    )


@cache
def _pairs_of(source: Source, gpu: str, engine: str, version: str) -> list[KernelKey]:
    rows = source.rows(gpu, "moe", engine, version)
    exact = rows[rows["distribution"] == "balanced"]
    kernels = (
        KernelKey(gpu, engine, version, kernel, dtype, tuple(shape), tp, ep)
        for kernel, dtype, *shape, tp, ep in exact[KEY].drop_duplicates().to_numpy()
    )
    return sorted(pair for pair in kernels if pair.is_known)


def shape_of(model: ModelSpec) -> tuple[int, int, int, int]:
    moe = model.moe
    return model.expert_hidden, moe.expert_width, moe.top_k, moe.num_experts


def kernels_of(
    source: Source, model: ModelSpec, gpu: str, engine: str, dtype: str, tp: int
) -> list[KernelKey]:
    """Kernels of the newest version for a model's layer at `tp`, measured at any."""
    every = [pair for pair in pairs(source, gpu, engine) if pair.ep == 1]
    # Experts that are published in mxfp4 run with 16 bits of activations or with 8.
    named = (dtype, DTYPES.get(dtype, dtype))
    kernels = [p for p in every if p.dtype in named or f"_{dtype}" in p.dtype]
    if not kernels:
        there = ", ".join(sorted({pair.dtype for pair in every}))
        raise ConfigError(
            f"--dtype: no rows of {named[1]}, only of {there}; choose one of them"
        )
    shape = shape_of(model)
    kernels = [pair for pair in kernels if pair.shape == shape] or kernels
    newest = max((pair.version for pair in kernels), key=Version)
    resharded = {p._replace(shape=shape, tp=tp) for p in kernels if p.version == newest}
    return sorted(pair for pair in resharded if pair.is_known)


def layer_name(pair: KernelKey) -> str:
    hidden, width, top_k, experts = pair.shape
    return f"{experts} experts of {hidden}x{width}, top-{top_k} at tp {pair.tp}"
