"""The device that torch runs on: its choice, its name, and what its errors mean."""

import re
from pathlib import Path

import torch

from runners.protocol import Message, Refusal
from runners.session import source_digest

MIN_CAPABILITY = (8, 0)
CPUINFO = Path("/proc/cpuinfo")
BOARD = Path("/proc/device-tree/model")
NATIVE_BF16 = ("amx_bf16", "avx512_bf16", "bf16")
"""Flags of CPUs that multiply bfloat16 themselves: two of x86, and Arm's."""
OUT_OF_MEMORY = ("out of memory", "can't allocate memory")
"""What torch says when an allocation fails, on a GPU and on a CPU."""


def pick_device(asked: str) -> torch.device:
    """The device to run on: "auto" takes a GPU where there is one."""
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
    if capability < MIN_CAPABILITY:
        raise Refusal(
            "device",
            f"{torch.cuda.get_device_name()} has compute capability {capability}, and "
            "grouped_mm needs 8.0; pass --device cpu",
        )
    return torch.device("cuda")


def pick_dtype(model: Message, asked: str, device: torch.device) -> tuple[str, str]:
    """The dtype to measure in, and why; "auto" takes the model's where it is native.

    A CPU without instructions for bfloat16 spends most of a forward on repacking it.
    That arithmetic grows with the tokens and hides what reading an expert costs, which
    is what a server on a GPU pays for; float32 leaves the memory in charge.
    """
    own = str(model["dtype"])
    wanted = own if asked == "auto" else asked
    if wanted not in ("bfloat16", "float32"):
        raise Refusal(
            "infeasible",
            f"{wanted} is a type of an engine's weights: measure it with --plan sglang "
            "or examples/llama_cpp/sweep.yaml, or give --dtype bfloat16 or float32",
        )
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


def describe(engine: str, module: str, device: torch.device) -> Message:
    """Facts that make two measurements comparable; `module` is a file of the runner."""
    return {
        "engine": engine,
        "engine_version": torch.__version__,
        "runner_sha256": source_digest(module),
        "device": _cpu_name() if device.type == "cpu" else torch.cuda.get_device_name(),
        "device_kind": device.type,
        "cuda": torch.version.cuda or "",
        "threads": torch.get_num_threads(),
        "tp": 1,
        "ep": 1,
    }


def _cpu_name() -> str:
    """As `evict_profile.sweep.machine` names it, and its widest instructions."""
    cpuinfo, flags = CPUINFO.read_text(), cpu_flags()
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    cores = re.findall(r"^CPU (?:imp|var|part).*:\s*(\S+)", cpuinfo, re.MULTILINE)
    board = [BOARD.read_text().rstrip("\0")] if BOARD.is_file() else []
    on_arm = dict.fromkeys(["CPU", *cores, *board]) if cores else ["unknown CPU"]
    name = model[1].strip() if model else " ".join(on_arm)
    known = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")
    widest = next((flag for flag in known if flag in flags), "")
    return f"{name} {widest}".strip()


def first_line(error: BaseException) -> str:
    """What it says, without the advice and the stack that torch adds."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def out_of_memory(error: BaseException | None) -> str:
    """What was said of memory, by this error or by one that it came from; "" if none.

    Ending a capture that a failed allocation broke off is an error of its own.
    """
    while error is not None:
        says = first_line(error)
        if any(sign in says for sign in OUT_OF_MEMORY):
            return says
        error = error.__context__
    return ""


def device_lost(device: torch.device) -> bool:
    """Whether nothing runs on the device any more, as after an illegal access.

    CUDA then answers every later call in this process with the same error.
    """
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
