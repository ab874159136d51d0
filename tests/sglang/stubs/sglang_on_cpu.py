"""Lets SGLang's engine start on a machine without a GPU, in every process it spawns.

The interpreter imports this as it starts: a `.pth` file in the environment says so, and
`make .venv-sglang/ready` writes it. On a machine with an NVIDIA GPU it does nothing and
takes this folder off the path again, so that `sgl_kernel` is SGLang's own.

SGLang reads the environment variables as it is imported. What else it needs is
changed in a module as that is imported, so that nothing is imported here:

- `torchvision`'s wheel is built for CUDA; beside torch for CPUs it fails to describe
  two of its operators, which are declared here.
- The attention backend whose kernels `sgl_kernel` stands in for, "intel_amx", is the
  one on a CPU that verifies trees; SGLang offers it where the processor has AMX.
- Targets that share their embedding with an MTP layer wait for a GPU afterwards.
- The buffer of routed experts is pinned, which is left out.
"""

import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

Change = Callable[[ModuleType], object]


def declare_operators(torchvision: ModuleType) -> None:
    """Before torchvision runs; the library must live as long as the process."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(
            f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
    torchvision._operators_for_cpu = library  # type: ignore[attr-defined]


def offer_amx(runtime_context: Any) -> None:
    """Since 0.5.20. Layers ask elsewhere for AMX, and keep computing in plain torch."""
    override = getattr(runtime_context, "override_platform", None)
    if override is not None:
        override(has_amx=True).install()


def offer_amx_0_5_16(overrides: Any) -> None:
    if hasattr(overrides, "cpu_has_amx_support"):
        overrides.cpu_has_amx_support = lambda: True


def never_wait(cuda: Any) -> None:
    cuda.synchronize = lambda device=None: None


def leave_unpinned(allocation: Any) -> None:
    """SGLang registers buffers of the host with CUDA, whatever the device."""
    allocation._cuda_host_register = lambda *arguments: None


BEFORE: dict[str, Change] = {"torchvision": declare_operators}
AFTER: dict[str, Change] = {
    "sglang.srt.runtime_context": offer_amx,
    "sglang.srt.arg_groups.overrides": offer_amx_0_5_16,
    "torch.cuda": never_wait,
    "sglang.srt.mem_cache.pool_host.common": leave_unpinned,
}


class Changing(Loader):
    """A module's own loader, and the change before or after it."""

    def __init__(self, loader: Loader, name: str) -> None:
        self.loader = loader
        self.name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if change := BEFORE.get(self.name):
            change(module)
        self.loader.exec_module(module)
        if change := AFTER.get(self.name):
            change(module)


class Finder(MetaPathFinder):
    """Finds the modules to be changed as Python would, with a changing loader."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in BEFORE and name not in AFTER:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = Changing(spec.loader, name)
        return spec


def has_gpu() -> bool:
    return Path("/dev/nvidiactl").exists()


def set_up() -> None:
    if has_gpu():
        sys.path[:] = [at for at in sys.path if Path(at) != Path(__file__).parent]
        return
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    # Nothing here is worth compiling, and compilers need not be installed.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    # Where torch brings NCCL, two ranks would ask a GPU for it.
    os.environ.setdefault("SGLANG_NCCL_SO_PATH", "none")
    sys.meta_path.insert(0, Finder())


set_up()
