"""What an SGLang server really runs: the facts that a cost table is keyed by.

Not what was asked for. SGLang resolves "auto" by device, model and what is installed,
and falls back; a third of all costs moves by more than 10 % between kernels, so a table
of another kernel is a wrong one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from evict_profile.integrations.sglang.options import option
from evict_profile.integrations.sglang.versions import installed

ENGINE = "sglang"


def observed_key(model_runner: Any) -> dict[str, Any]:
    """The key of this engine, all but the model's name."""
    args = model_runner.server_args
    return {
        "gpu": device_name(model_runner),
        "dtype": str(model_runner.dtype).removeprefix("torch."),
        "engine": ENGINE,
        "engine_version": installed(),
        "attention_backend": attention_backend(model_runner),
        "moe_backend": moe_backend(model_runner),
        "graph_mode": graph_mode(model_runner),
        "tp": option(args, "tp_size"),
        "ep": option(args, "ep_size"),
    }


def attention_backend(model_runner: Any) -> str:
    """The class that runs attention, with its kernel's version if it has several."""
    backend = model_runner.attn_backend
    version = getattr(backend, "fa_impl_ver", None)
    name = type(backend).__name__
    return f"{name}-fa{version}" if version else name


def moe_backend(model_runner: Any) -> str:
    """The kernels that run the experts of the first MoE layer."""
    layer = next(experts(model_runner.model), None)
    if layer is None:
        return "none"
    method = layer.quant_method
    runner = getattr(getattr(method, "runner", None), "runner_backend", None)
    # On a CPU a runner is made all the same, and is not asked.
    on_cpu = not str(model_runner.device).startswith("cuda")
    kernel = "native" if runner is None or on_cpu else runner.value
    return f"{type(method).__name__}-{kernel}"


def experts(model: torch.nn.Module) -> Iterator[Any]:
    """The modules that hold routed experts, in order."""
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

    return (module for module in model.modules() if isinstance(module, FusedMoE))


def graph_mode(model_runner: Any) -> str:
    """How a verification is launched."""
    return "eager" if model_runner.decode_cuda_graph_runner is None else "cuda-graph"


def device_name(model_runner: Any) -> str:
    """The GPU, or the CPU's model, by name."""
    if str(model_runner.device).startswith("cuda"):
        return torch.cuda.get_device_name()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.split(":", 1)[1] for line in lines if line.startswith("model name"))
    return next(names, "unknown CPU").strip()
