"""What this machine is, and what will work on it."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from evict_profile.config import ModelSpec, load_model
from evict_profile.config.load import known_models
from evict_profile.physics import layer_bytes
from evict_profile.records import replace
from evict_profile.sweep.machine import (
    UNKNOWN_CPU,
    bf16_is_native,
    cpu_name,
    load,
)

GROUPED_MM_TORCH = "2.10"


@dataclass(frozen=True)
class Check:
    name: str
    message: str
    good: bool = True

    def __str__(self) -> str:
        return f"{'ok  ' if self.good else 'note'} {self.name}: {self.message}"


def examine() -> Iterator[Check]:
    yield Check("system", f"{platform.platform()}, Python {platform.python_version()}")
    memory = psutil.virtual_memory()
    cpu = cpu_name()
    yield Check(
        "CPU",
        f"{cpu}, {os.cpu_count()} cores, {memory.available / 1e9:.0f} of "
        f"{memory.total / 1e9:.0f} GB memory free; sweeps run in {cpu_dtype()}",
        cpu != UNKNOWN_CPU,
    )
    yield _load()
    disk = shutil.disk_usage(Path.cwd())
    enough = disk.free > 1e9
    yield Check("disk", f"{disk.free / 1e9:.0f} GB free in {Path.cwd()}", enough)
    yield _torch()
    yield _decisions()
    yield _gpu()
    yield _nvml()
    yield _sglang()
    yield _fitting(memory.available)


def cpu_dtype() -> Literal["bfloat16", "float32"]:
    """What `--dtype auto` measures most models in on this CPU."""
    return "bfloat16" if bf16_is_native() else "float32"


def _load() -> Check:
    processes, quiet = load()
    advice = "" if quiet else "; a quieter machine gives narrower intervals"
    return Check("load", f"{processes}{advice}", quiet)


def _torch() -> Check:
    import torch
    from torch.nn import functional

    has_kernel = hasattr(functional, "grouped_mm")
    message = (
        f"{torch.__version__}, grouped_mm {'present' if has_kernel else 'missing'}"
    )
    fix = "" if has_kernel else f"; install torch {GROUPED_MM_TORCH} or newer"
    return Check("torch", message + fix, has_kernel)


def _decisions() -> Check:
    from evict_profile.runtime.decision import COMPILED

    if COMPILED:
        return Check("decisions", "compiled")
    fix = "install again with a C compiler and Python's headers: 4 to 9 times as fast"
    return Check("decisions", f"in numpy; {fix}", False)


def _gpu() -> Check:
    import torch

    if not torch.cuda.is_available():
        return Check("GPU", "none; sweeps run on the CPU, one thread, a few layers")
    name, memory = torch.cuda.get_device_name(), torch.cuda.mem_get_info()
    capable = torch.cuda.get_device_capability() >= (8, 0)
    fix = "" if capable else "; grouped_mm needs compute capability 8.0: use the CPU"
    free = f"{memory[0] / 1e9:.0f} of {memory[1] / 1e9:.0f} GB free"
    return Check("GPU", f"{name}, {free}{fix}", capable)


def _nvml() -> Check:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Check("NVML", f"no throttle events: {error}")
    return Check("NVML", f"driver {pynvml.nvmlSystemGetDriverVersion()}")


def _sglang() -> Check:
    if importlib.util.find_spec("sglang") is None:
        return Check("sglang", "not installed; in a checkout: pip install '.[sglang]'")
    return Check("sglang", importlib.metadata.version("sglang"))


def _fitting(free_bytes: float) -> Check:
    models = [load_model(str(path)) for path in known_models()]
    if cpu_dtype() == "float32":
        models = [replace(model, dtype="float32") for model in models]
    fits = [m.name for m in models if _smallest_bytes(m) < 0.9 * free_bytes]
    message = (
        f"{len(fits)} of {len(models)} models fit on the CPU with one layer or more: "
    )
    return Check("models", message + ", ".join(fits), bool(fits))


def _smallest_bytes(model: ModelSpec) -> int:
    embedding = model.vocab_size * model.hidden_size
    non_moe = (embedding + model.non_moe_weights) * model.bytes_per_value
    return round(non_moe) + layer_bytes(model)
