"""A wheel as NVIDIA's is laid out, its rows made from a formula that tests know."""

from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from evict_profile.sources.aiconfigurator import (
    OPERATIONS,
    PACKAGE,
    VERSION,
    systems_of,
)
from evict_profile.sources.experts import balanced_union
from evict_profile.sources.pairs import KernelKey

GPU, DEVICE, PEAK_GBPS = "h200_sxm", "NVIDIA H200", 4800.0
ENGINE, ENGINE_VERSION, KERNEL = "sglang", "0.5.14", "fused_moe"
HIDDEN, WIDTH, TOP_K, EXPERTS = SHAPE = (2048, 768, 8, 128)
"""Of qwen3-30b-a3b."""

PAIR = KernelKey(GPU, ENGINE, ENGINE_VERSION, KERNEL, "bfloat16", SHAPE, 1, 1)

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
BASE_US, US_PER_TOKEN, SHARE = 20.0, 0.02, 0.85
US_PER_EXPERT = 3 * HIDDEN * WIDTH * 2 / (SHARE * PEAK_GBPS) / 1e3


def moe_us(tokens: int, union: float) -> float:
    return BASE_US + US_PER_EXPERT * union + US_PER_TOKEN * tokens


def moe_rows(**changed: Any) -> list[dict[str, Any]]:
    facts = {"kernel_source": KERNEL, "moe_dtype": "bfloat16", "hidden_size": HIDDEN}
    facts |= {"inter_size": WIDTH, "topk": TOP_K, "num_experts": EXPERTS}
    facts |= {"moe_tp_size": 1, "moe_ep_size": 1}
    return [
        {**facts, "distribution": "balanced", "num_tokens": tokens}
        | {"us": moe_us(tokens, balanced_union(tokens, EXPERTS, TOP_K))}
        | changed
        for tokens in TOKENS
    ]


def gemm_us(m: int, n: int, k: int) -> float:
    """What the formula says of a product: linear in m, and in the logarithms."""
    return 0.004 * (n * k) ** 0.5 * (1 + m / 500)


def gemm_rows(dtype: str = "bfloat16", times: float = 1.0) -> list[dict[str, Any]]:
    sizes = product((1, 16, 256, 4096), (64, 1024, 8192, 65536), (64, 1024, 8192))
    return [
        {"gemm_dtype": dtype, "m": m, "n": n, "k": k, "us": times * gemm_us(m, n, k)}
        for m, n, k in sizes
    ]


def attention_us(sequences: float, context: float) -> float:
    return 4.0 * sequences**0.25 * (context / 512) ** 0.5


def attention_rows(**changed: Any) -> list[dict[str, Any]]:
    """Decoding with the heads of qwen3-30b-a3b, whole and cut in two."""
    facts = {"num_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "step": 0}
    facts |= {"attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}
    facts |= {"beam_width": 1, "window_size": 0}
    whole = facts | changed
    halves = {"num_heads": 16, "num_key_value_heads": 2}
    return [
        each | {"batch_size": batch, "isl": context, "us": attention_us(batch, context)}
        for each in (whole, whole | halves)
        for batch, context in product((1, 16, 256, 4096), (128, 1024, 8192))
    ]


def all_reduce_us(elements: float) -> float:
    """What the formula says of an all-reduce of two GPUs in a graph."""
    return 3.0 * (elements / 128) ** 0.2


def all_reduce_rows() -> list[dict[str, Any]]:
    """Of two GPUs, in a graph and, ten times slower, without."""
    facts = {"allreduce_dtype": "bfloat16", "num_gpus": 2}
    sizes = [(n, all_reduce_us(n)) for n in (128, 2**14, 2**21)]
    return [
        {**facts, "kernel_source": mode, "message_size": n, "us": slower * us}
        for mode, slower in (("custom_graph", 1.0), ("custom_eager", 10.0))
        for n, us in sizes
    ]


def write_rows(
    root,
    operation,
    rows,
    gpu=GPU,
    engine=ENGINE,
    version=ENGINE_VERSION,
    package=PACKAGE,
):
    """One file of rows, with the columns that all of them have."""
    kind = OPERATIONS[operation]
    common = {"framework": engine, "version": version, "device": DEVICE}
    frame = pd.DataFrame(rows).assign(**common, op_name=operation)
    frame = frame.assign(latency=frame.pop("us") / 1e3)
    if "kernel_source" not in frame:
        frame["kernel_source"] = KERNEL
    place = root / systems_of(package) / "data" / gpu / kind.family / engine / version
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{kind.file}.parquet"
    frame.to_parquet(path, index=False)
    return path


def write_wheel(root: Path, version: str = VERSION, package: str = PACKAGE) -> Path:
    """A folder with the rows of one GPU and engine; returns it."""
    (root / f"{package.replace('-', '_')}-{version}.dist-info").mkdir(parents=True)
    for operation, rows in {
        "moe": moe_rows(),
        "gemm": gemm_rows() + gemm_rows("fp8", 0.7) + gemm_rows("fp8_block", 30.0),
        "attention": attention_rows(),
        "all-reduce": all_reduce_rows(),
    }.items():
        write_rows(root, operation, rows, package=package)
    return root
