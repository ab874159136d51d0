"""Datasheet rates of a GPU for the roofline: a bound of latency, not a measurement."""

from dataclasses import dataclass

from evict_profile.io import named_file
from evict_profile.records import Positive, parse, read_mapping


@dataclass(frozen=True)
class GpuSpec:
    """Decimal units: 1 GB/s is 1e9 bytes/s; `bf16_dense_tflops` is without sparsity."""

    name: str
    source: str
    memory_gb: Positive
    memory_bandwidth_gbps: Positive
    bf16_dense_tflops: Positive
    l2_cache_mb: Positive


def load_gpu(name: str) -> GpuSpec:
    path = named_file("gpus", name)
    return parse(GpuSpec, read_mapping(path), str(path))
