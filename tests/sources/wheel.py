"""A wheel as NVIDIA's is laid out, its rows made from a formula that tests know."""

from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from evict_profile.sources.aiconfigurator import OPERATIONS, PACKAGE, SYSTEMS, VERSION
from evict_profile.sources.unions import balanced_union, power_law_union

GPU, DEVICE, PEAK_GBPS = "h200_sxm", "NVIDIA H200", 4800.0
ENGINE, ENGINE_VERSION, KERNEL = "sglang", "0.5.14", "fused_moe"
HIDDEN, WIDTH, TOP_K, EXPERTS = SHAPE = (2048, 768, 8, 128)
"""Of qwen3-30b-a3b."""

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
BASE_US, US_PER_TOKEN, SHARE = 20.0, 0.02, 0.85
US_PER_EXPERT = 3 * HIDDEN * WIDTH * 2 / (SHARE * PEAK_GBPS) / 1e3


def moe_us(tokens: int, union: float) -> float:
    """What the formula says of a layer's experts."""
    return BASE_US + US_PER_EXPERT * union + US_PER_TOKEN * tokens


def moe_rows(**changed: Any) -> list[dict[str, Any]]:
    """Rows of both samplers, for every token count."""
    facts = {
        "kernel_source": KERNEL,
        "moe_dtype": "bfloat16",
        "hidden_size": HIDDEN,
        "inter_size": WIDTH,
        "topk": TOP_K,
        "num_experts": EXPERTS,
        "moe_tp_size": 1,
        "moe_ep_size": 1,
    }
    rows = []
    for tokens in TOKENS:
        unions = {
            "balanced": balanced_union(tokens, EXPERTS, TOP_K),
            "power_law_1.2": power_law_union(tokens, EXPERTS, TOP_K, 1.2),
        }
        for distribution, union in unions.items():
            own = {"distribution": distribution, "num_tokens": tokens}
            rows.append(facts | own | {"us": moe_us(tokens, union)} | changed)
    return rows


def write_rows(
    root: Path,
    operation: str,
    rows: list[dict[str, Any]],
    gpu: str = GPU,
    engine: str = ENGINE,
    version: str = ENGINE_VERSION,
) -> Path:
    """One file of rows, with the columns that all of them have."""
    kind = OPERATIONS[operation]
    common = {"framework": engine, "version": version, "device": DEVICE}
    frame = pd.DataFrame(rows).assign(**common, op_name=operation)
    frame = frame.assign(latency=frame.pop("us") / 1e3)
    if "kernel_source" not in frame:
        frame["kernel_source"] = KERNEL
    place = root / SYSTEMS / "data" / gpu / kind.family / engine / version
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{kind.file}.parquet"
    frame.to_parquet(path, index=False)
    return path


def write_wheel(root: Path, version: str = VERSION) -> Path:
    """A folder with the rows of one GPU and engine; returns it."""
    (root / f"{PACKAGE.replace('-', '_')}-{version}.dist-info").mkdir(parents=True)
    write_rows(root, "moe", moe_rows())
    gpu = {
        "mem_bw": PEAK_GBPS * 1e9,
        "mem_empirical_constant_latency": 3e-6,
    }
    (root / SYSTEMS / f"{GPU}.yaml").write_text(yaml.safe_dump({"gpu": gpu}))
    return root
