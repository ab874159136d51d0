"""Reading a model's routes, and overwriting them: the union is forced on any GGUF.

llama.cpp calls back before and after each node of its graph. In all its architectures
the tensor `ffn_moe_topk-LAYER` holds the experts of every token: what is written there
runs, weighed by the router's own scores. A wanted node splits the graph there.
Which nodes those are is read once a shape: all names would cost 0.1 ms a layer.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from examples.llama_cpp import library as c
from examples.llama_cpp.engine import Context, ContextSize, Model
from runners.protocol import Refusal

TOPK = b"ffn_moe_topk-"
Routes = Sequence[np.ndarray]
"""Experts of each token in each MoE layer, int32 [tokens, k]."""


class Hook:
    """A context whose routes are read, or written."""

    def __init__(self, model: Model, size: ContextSize) -> None:
        self.c = model.c
        self.mode: Literal["read", "write", "idle"] = "idle"
        self.places: dict[object, frozenset[int]] = {}
        self.stride = 0
        self._begin("idle", frozenset())
        self.context = Context(model, size, self._call)

    def read(self, key: object, run: Callable[[], None]) -> Routes:
        """What a decode chooses; `key` names its shape, for `write`."""
        self._begin("read", frozenset())
        self._finish(run)
        self.places[key] = frozenset(self._found)
        return tuple(self._routes)

    def prepare(self, key: object, routes: Routes) -> None:
        rows, top_k = routes[0].shape
        self._begin("write", self.places[key])
        self._given = [np.zeros((rows, self.stride // 4), np.int32) for _ in routes]
        for given, layer in zip(self._given, routes, strict=True):
            given[:, :top_k] = layer
        self._bytes = (rows - 1) * self.stride + 4 * top_k

    def write(self, run: Callable[[], None]) -> None:
        self._finish(run)
        if self._at != len(self._given):
            raise Refusal(
                "failed",
                f"{self._at} of {len(self._given)} MoE layers took the forced routes",
            )

    def _begin(
        self, mode: Literal["read", "write", "idle"], places: frozenset[int]
    ) -> None:
        self.mode, self._places = mode, places
        self._error: Exception | None = None
        self._asked = self._at = 0
        self._found: list[int] = []
        self._routes: list[np.ndarray] = []

    def _finish(self, run: Callable[[], None]) -> None:
        run()
        self.mode = "idle"
        if self._error is not None:
            raise self._error

    def _call(self, tensor: int, asked: bool) -> bool:
        """llama.cpp's callback: an error in it would only stop the graph, unsaid."""
        try:
            if asked:
                return self._is_wanted(tensor)
            (self._take if self.mode == "read" else self._put)(tensor)
        except Exception as error:
            self._error = error
            return False
        return True

    def _is_wanted(self, tensor: int) -> bool:
        place, self._asked = self._asked, self._asked + 1
        if self.mode == "write":
            return place in self._places
        if self.mode == "read" and self.c.ggml_get_name(tensor).startswith(TOPK):
            self._found.append(place)
            return True
        return False

    def _take(self, tensor: int) -> None:
        head = c.Tensor.from_address(tensor)
        top_k, rows, stride = int(head.ne[0]), int(head.ne[1]), int(head.nb[1])
        self.stride = stride
        if not rows:  # the last layer of a decode without outputs
            return
        values = np.zeros((rows, stride // 4), np.int32)
        size = self.c.ggml_nbytes(tensor)
        self.c.ggml_backend_tensor_get(tensor, values.ctypes.data, 0, size)
        self._routes.append(values[:, :top_k].copy())

    def _put(self, tensor: int) -> None:
        if not self.c.ggml_get_name(tensor).startswith(TOPK):
            raise Refusal("failed", "the graph of this shape changed between decodes")
        data = self._given[self._at].ctypes.data
        self.c.ggml_backend_tensor_set(tensor, data, 0, self._bytes)
        self._at += 1
