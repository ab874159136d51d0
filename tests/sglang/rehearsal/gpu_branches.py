"""The runner, with the branches that SGLang takes on a GPU taken on CPU tensors.

In the functions and kernels below, a tensor and the platform say that they are CUDA's.
The kernels run in Triton's interpreter. As a program this is the runner.
"""

import __future__

import ast
import importlib
import inspect
import sys
import textwrap

from runners.protocol import serve_session
from runners.sglang_verify.session import Session

SPECULATIVE = "sglang.srt.speculative."
FUNCTIONS = {
    "eagle_worker_common": (
        "build_eagle_verify_input",
        "prepare_for_draft",
        "prepare_for_draft_extend",
        "run_eagle_verify",
    ),
    "eagle_worker_v2": (
        "EagleDraftWorker._draft_extend_for_decode",
        "EagleDraftWorker.draft_forward",
    ),
}
"""Functions of a step that branch; the rest of their modules starts for a CPU."""

KERNELS = "sglang.kernels.ops.speculative."
KERNEL_MODULES = ("cache_locs", "eagle")
ANSWERS = {"_is_cuda": True, "_is_cpu": False}


class OnGpu(ast.NodeTransformer):
    """Answers what the code asks about its device."""

    answered = 0

    def visit_Attribute(self, node):
        self.generic_visit(node)
        if node.attr == "is_cuda":
            node.attr = "is_cpu"
            self.answered += 1
        return node

    def visit_Name(self, node):
        if node.id not in ANSWERS:
            return node
        self.answered += 1
        return ast.copy_location(ast.Constant(ANSWERS[node.id]), node)


def on_gpu(function):
    """The same function, compiled with the answers of a GPU."""
    gpu = OnGpu()
    tree = gpu.visit(ast.parse(textwrap.dedent(inspect.getsource(function))))
    assert gpu.answered, f"{function.__name__} has no branch for a GPU"
    code = compile(
        tree,
        f"<{function.__name__} on a GPU>",
        "exec",
        __future__.annotations.compiler_flag,
    )
    defined = {}
    exec(code, function.__globals__, defined)
    return defined[function.__name__]


def replace_function(module, path):
    *owners, name = path.split(".")
    owner = module
    for each in owners:
        owner = getattr(owner, each)
    old = getattr(owner, name)
    new = on_gpu(old)
    setattr(owner, name, new)
    if not owners:
        for other in list(sys.modules.values()):
            if vars(other).get(name) is old:  # imported by name
                setattr(other, name, new)


def take_gpu_branches():
    modules = {name: importlib.import_module(SPECULATIVE + name) for name in FUNCTIONS}
    for name, paths in FUNCTIONS.items():
        for path in paths:
            replace_function(modules[name], path)
    for name in KERNEL_MODULES:
        vars(importlib.import_module(KERNELS + name)).update(ANSWERS)


if __name__ == "__main__":
    take_gpu_branches()
    serve_session(Session)
