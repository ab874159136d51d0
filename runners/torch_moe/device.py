"""What the runner runs on: the part of a fingerprint that only it can see."""

import hashlib
import re
from pathlib import Path
from typing import Any

import torch

from runners.protocol import Refusal

SMALLEST_CAPABILITY = (8, 0)
CPUINFO = Path("/proc/cpuinfo")
NATIVE_BF16 = ("amx_bf16", "avx512_bf16", "bf16")
"""Flags of CPUs that multiply bfloat16 themselves: two of x86, and Arm's."""


def pick_device(asked: str) -> torch.device:
    """The device to run on: "auto" takes a GPU where there is one.

    Raises:
        Refusal: a GPU was asked for and none is usable.
    """
    usable = torch.cuda.is_available()
    if asked == "cpu" or (asked == "auto" and not usable):
        torch.set_num_threads(1)
        return torch.device("cpu")
    if not usable:
        raise Refusal(
            "device",
            f"a GPU was asked for and torch {torch.__version__} finds none; pass "
            "--device cpu, or install a CUDA build of torch",
        )
    capability = torch.cuda.get_device_capability()
    if capability < SMALLEST_CAPABILITY:
        raise Refusal(
            "device",
            f"{torch.cuda.get_device_name()} has compute capability {capability}, and "
            "grouped_mm needs 8.0; pass --device cpu",
        )
    return torch.device("cuda")


def pick_dtype(
    model: dict[str, Any], asked: str, device: torch.device
) -> tuple[str, str]:
    """The dtype to measure in, and why; "auto" takes the model's where it is native.

    A CPU without instructions for bfloat16 spends most of a forward on repacking it.
    That arithmetic grows with the tokens and hides what reading an expert costs, which
    is what a server on a GPU pays for; float32 leaves the memory in charge.
    """
    own = str(model["dtype"])
    if asked != "auto":
        return asked, "asked for"
    if own != "bfloat16" or device.type == "cuda":
        return own, "the model's own"
    native = [flag for flag in NATIVE_BF16 if flag in cpu_flags()]
    if native:
        return own, f"the model's own, which this CPU multiplies itself ({native[0]})"
    return "float32", (
        "this CPU only emulates the model's bfloat16 (no AMX-BF16, no AVX512-BF16), "
        "and that arithmetic would hide what reading an expert costs"
    )


def cpu_flags() -> set[str]:
    """What the CPU says it can do; the line is called "Features" on Arm."""
    flags = re.search(
        r"^(?:flags|Features)\s*:(.+)$", CPUINFO.read_text(), re.MULTILINE
    )
    return set(flags[1].split()) if flags else set()


def describe(device: torch.device) -> dict[str, object]:
    """Facts that make two measurements comparable."""
    return {
        "engine": "torch_moe",
        "engine_version": torch.__version__,
        "runner_sha256": _source_digest(),
        "device": _cpu_name() if device.type == "cpu" else torch.cuda.get_device_name(),
        "device_kind": device.type,
        "cuda": torch.version.cuda or "",
    }


def _cpu_name() -> str:
    model = re.search(r"^model name\s*:\s*(.+)$", CPUINFO.read_text(), re.MULTILINE)
    flags = cpu_flags()
    name = model[1] if model else "unknown CPU"
    known = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")
    widest = next((flag for flag in known if flag in flags), "")
    return f"{name} {widest}".strip()


def _source_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]
