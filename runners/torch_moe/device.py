"""What the runner runs on: the part of a fingerprint that only it can see."""

import hashlib
import re
from pathlib import Path

import torch

from runners.protocol import Refusal

SMALLEST_CAPABILITY = (8, 0)


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
    text = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.+)$", text, re.MULTILINE)
    name = model[1] if model else "unknown CPU"
    known = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")
    widest = next((f for f in known if flags and f in flags[1].split()), "")
    return f"{name} {widest}".strip()


def _source_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]
