"""Standing between SGLang's router and its experts: force routes, and record them.

All MoE backends that go through `select_experts` read the expert ids it returns, so
overwriting them in place forces an exact union, and copying them out tells what ran.
Both use one buffer a layer, made beforehand: inside a captured graph the copy is then
part of the graph, and the host writes or reads the buffer between replays.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TARGET = "sglang.srt.layers.moe.topk.select_experts"
BYPASSING = (
    "flashinfer_trtllm",
    "flashinfer_trtllm_routed",
    "flashinfer_mxfp4",
    "experimental_sgl_trtllm",
    "triton_kernel",
)
"""MoE runner backends that route inside their own kernel, where nobody can stand."""


class Router:
    """Buffers of routes, int32 [tokens, k] for each MoE layer, and their hook.

    Attributes:
        recording: whether routes are copied out.
        forcing: whether the forced routes replace the router's own.
    """

    def __init__(self) -> None:
        """A router that leaves everything as it is until `allocate`."""
        self.recording = self.forcing = False
        self.recorded: dict[int, Tensor] = {}
        self.forced: dict[int, Tensor] = {}

    def allocate(
        self, layers: list[int], tokens: int, top_k: int, device: torch.device | str
    ) -> None:
        """Make the buffers; before any graph is captured."""
        shape = (tokens, top_k)
        for buffers in (self.recorded, self.forced):
            buffers.update(
                {
                    i: torch.zeros(shape, dtype=torch.int32, device=device)
                    for i in layers
                }
            )

    def select(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The hook around `select_experts`; weights of forced routes are all alike."""
        out = original(*args, **kwargs)
        layer, tokens = kwargs.get("layer_id"), len(out.topk_ids)
        if layer not in self.recorded or tokens > len(self.recorded[layer]):
            return out
        if self.forcing:
            out.topk_ids.copy_(self.forced[layer][:tokens])
            out.topk_weights.fill_(1.0 / out.topk_ids.shape[1])
        if self.recording:
            self.recorded[layer][:tokens].copy_(out.topk_ids)
        return out

    def force(self, routes: Tensor) -> None:
        """Set the routes of the next forwards: int [layers, tokens, k], in order."""
        for layer, rows in zip(sorted(self.forced), routes, strict=True):
            self.forced[layer][: len(rows)].copy_(rows)

    def routes(self, tokens: int) -> Tensor:
        """What the last forward ran: int32 [layers, tokens, k], on the CPU."""
        rows = [self.recorded[layer][:tokens] for layer in sorted(self.recorded)]
        return torch.stack(rows).cpu()
