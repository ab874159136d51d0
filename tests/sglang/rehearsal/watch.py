"""What a function asks of a GPU, seen on fake CUDA tensors.

Fake tensors have a shape and a device and no values, so a CUDA build of torch is enough
and no GPU is needed. A captured graph must not wait for the host, take a shape from
data, or copy over the bus. A decode step pays for each of them, and for each launch.
"""

import traceback
from collections import Counter
from contextlib import suppress

import torch
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten

HOST_READS = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.is_nonzero.default,
}
SHAPES_FROM_DATA = {
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_consecutive.default,
    aten.repeat_interleave.Tensor,
    aten.bincount.default,
}
INDEXING = {aten.index.Tensor, aten.index_put_.default}


class DeviceWatch(TorchDispatchMode):
    """Counts launches, and notes what a captured graph forbids, with its line."""

    def __init__(self):
        super().__init__()
        self.notes = []
        self.launched = Counter()

    @property
    def launches(self):
        return self.launched.total()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = devices((args, kwargs))
        if function in HOST_READS and "cuda" in given:
            self.note("host read", function)
            return 0  # the next ones are seen as well
        if "cuda" in given and shape_from_data(function, args):
            self.note("shape from data", function)
        out = function(*args, **kwargs)
        both = given | devices(out)
        if "cuda" in both and not is_view(function):
            self.launched[str(function)] += 1
        if {"cuda", "cpu"} <= both and copies(function):
            self.note("copy over the bus", function)
        return out

    def note(self, kind, function):
        self.notes.append(f"{kind}: {function} at {line_of_ours()}")


def watched(prepare):
    """Watch what `prepare` returns, a function on fake CUDA tensors."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        run = prepare()
        watch = DeviceWatch()
        # Nothing follows a shape from data, for a fake tensor has none.
        with suppress(DynamicOutputShapeException), torch.no_grad(), watch:
            run()
    return watch


def devices(tree):
    return {t.device.type for t in tree_leaves(tree) if isinstance(t, torch.Tensor)}


def shape_from_data(function, args):
    if function in INDEXING:
        tensors = [each for each in args[1] if isinstance(each, torch.Tensor)]
        return any(each.dtype == torch.bool for each in tensors)
    return function in SHAPES_FROM_DATA


def is_view(function):
    returned = function._schema.returns
    aliases = any(each.alias_info for each in returned)
    return function.namespace == "prim" or (aliases and not function._schema.is_mutable)


def copies(function):
    """A scalar on the host is no copy: kernels take it as an argument."""
    return function in (aten.copy_.default, aten._to_copy.default)


def line_of_ours():
    for frame in reversed(traceback.extract_stack()):
        for package in ("/evict_profile/", "/runners/"):
            if package in frame.filename:
                return (
                    package[1:] + frame.filename.split(package)[-1] + f":{frame.lineno}"
                )
    return "another package"
