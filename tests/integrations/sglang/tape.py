"""A CUDA graph on the CPU: what a function launches, on a tape that can be replayed.

Replay runs each operation again, on the very tensors of the capture; the function's own
Python does not run.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Tape(TorchDispatchMode):
    """Notes what is launched within; views launch nothing."""

    def __init__(self):
        super().__init__()
        self.launches = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        schema = func._schema
        if schema.is_mutable or not any(each.alias_info for each in schema.returns):
            self.launches.append((func, args, kwargs or {}, out))
        return out

    def replay(self):
        for func, args, kwargs, out in self.launches:
            again = func(*args, **kwargs)
            if func._schema.is_mutable:
                continue
            pairs = ((out, again),) if torch.is_tensor(out) else zip(out, again)  # noqa: B905
            for old, new in pairs:
                old.copy_(new)
