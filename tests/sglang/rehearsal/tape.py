"""A CUDA graph on the CPU: the operations of a function on a tape.

Capture notes each operation with its very tensors and scalars. Replay runs the notes
again into the same tensors. So what a function decided in Python is frozen, and what it
reads it reads from the addresses of the capture, as on a GPU.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.sglang.rehearsal.watch import HOST_READS, is_view, shape_from_data

WARM_UPS = 2
"""Runs of SGLang before it captures."""


class TapeGraph(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.notes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in HOST_READS or shape_from_data(function, args):
            raise RuntimeError(f"not permitted when a stream is capturing: {function}")
        out = function(*args, **kwargs)
        if not is_view(function):
            self.notes.append((function, args, kwargs, out))
        return out

    @torch.no_grad()
    def replay(self):
        for function, args, kwargs, out in self.notes:
            again = function(*args, **kwargs)
            if function._schema.is_mutable:
                continue
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor):
                    old.copy_(new)


def captured(run):
    """The graph of `run`, and the static tensors that it returned."""
    for _ in range(WARM_UPS):
        run()
    graph = TapeGraph()
    with graph:
        out = run()
    return graph, out
