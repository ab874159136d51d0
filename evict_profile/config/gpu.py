"""What a GPU's datasheet promises: the rates behind a roofline without a measurement.

Datasheet rates are ceilings that no kernel sustains, so a roofline drawn with them
is a lower bound of latency, never a measurement. One YAML file a GPU in
`configs/gpus/`.
"""

from dataclasses import dataclass

from evict_profile.io import named_file
from evict_profile.records import Positive, parse, read_mapping


@dataclass(frozen=True)
class GpuSpec:
    """Datasheet rates in decimal units: 1 GB/s is 1e9 bytes a second.

    `bf16_dense_tflops` is without structured sparsity, which doubles the number
    that datasheets print first.
    """

    name: str
    source: str
    memory_gb: Positive
    memory_bandwidth_gbps: Positive
    bf16_dense_tflops: Positive
    l2_cache_mb: Positive


def load_gpu(name: str) -> GpuSpec:
    """Read a GPU by name ("h200-sxm"), or by the path of a YAML of one's own."""
    path = named_file("gpus", name)
    return parse(GpuSpec, read_mapping(path), str(path))
