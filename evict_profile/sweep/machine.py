"""What happened to the machine while a sample was taken: throttling, stolen time."""

import contextlib
import os
import re
from pathlib import Path
from typing import Any

CPUINFO = Path("/proc/cpuinfo")
BOARD = Path("/proc/device-tree/model")
UNKNOWN_CPU = "unknown CPU"
STEAL_SHARE = 0.01
"""Stolen time under 1 % of a sample is no event."""
HARMLESS = 0x1 | 0x2
"""NVML's bits of an idle GPU, and of clocks that a user set (`nvidia-smi -lgc`)."""


class CpuWatch:
    def __init__(self) -> None:
        self._last = _cpu_ticks()

    def events(self) -> str:
        """ "steal 3%" when more than 1 % was stolen."""
        steal, total = _cpu_ticks()
        stolen, passed = steal - self._last[0], total - self._last[1]
        self._last = (steal, total)
        share = stolen / passed if passed else 0.0
        return f"steal {share:.0%}" if share > STEAL_SHARE else ""


class GpuWatch:
    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml = pynvml
        self._handle = _visible_gpu(pynvml)
        # Read here, since `watch` does without a GPU's where an old pynvml lacks it.
        self._read = pynvml.nvmlDeviceGetCurrentClocksEventReasons
        prefix = "nvmlClocksEventReason"
        self._reasons = {
            name.removeprefix(prefix): bit
            for name, bit in vars(pynvml).items()
            if name.startswith(prefix) and bit.bit_count() == 1 and not bit & HARMLESS
        }

    def events(self) -> str:
        """Reasons in force now; "" where the driver does not support the query."""
        try:
            mask = self._read(self._handle)
        except self._nvml.NVMLError:
            return ""
        return ", ".join(n for n, bit in sorted(self._reasons.items()) if mask & bit)


def cpu_name() -> str:
    """The CPU as the system and `runners.device` name it; on Arm with its board."""
    cpuinfo = _cpuinfo()
    if named := re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE):
        return named[1].strip()
    cores = re.findall(r"^CPU (?:imp|var|part).*:\s*(\S+)", cpuinfo, re.MULTILINE)
    board = [BOARD.read_text().rstrip("\0")] if BOARD.is_file() else []
    return " ".join(dict.fromkeys(["CPU", *cores, *board])) if cores else UNKNOWN_CPU


def bf16_is_native() -> bool:
    """Whether the CPU multiplies bfloat16 itself: two flags of x86, and Arm's."""
    words = _cpuinfo().split()
    return not {"amx_bf16", "avx512_bf16", "bf16"}.isdisjoint(words)


def _cpuinfo() -> str:
    return CPUINFO.read_text() if CPUINFO.is_file() else ""


def load() -> tuple[str, bool]:
    busy, cores = os.getloadavg()[0], os.cpu_count() or 1
    return f"{busy:.1f} processes run on {cores} cores", busy < 0.5 * cores


def watch(device_kind: str) -> CpuWatch | GpuWatch:
    if device_kind == "cuda":
        with contextlib.suppress(Exception):
            return GpuWatch()
    return CpuWatch()


def _visible_gpu(nvml: Any) -> Any:
    """The GPU that torch calls the first; NVML counts hidden ones, in another order."""
    import torch

    if torch.cuda.is_available():
        gpu: Any = torch.cuda.get_device_properties(0)
        place = f"{gpu.pci_domain_id:x}:{gpu.pci_bus_id:x}:{gpu.pci_device_id:x}.0"
        return nvml.nvmlDeviceGetHandleByPciBusId(place)
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if first.startswith(("GPU-", "MIG-")):
        return nvml.nvmlDeviceGetHandleByUUID(first)
    index = int(first) if first.isdigit() else 0
    return nvml.nvmlDeviceGetHandleByIndex(index)


def _cpu_ticks() -> tuple[int, int]:
    try:
        first = Path("/proc/stat").read_text().splitlines()[0]
    except OSError:
        return 0, 0
    ticks = [int(field) for field in first.split()[1:]]
    return ticks[7], sum(ticks[:8])
