"""Buffers beside captured graphs: the drafter's scores, and the experts that ran.

Buffers made before capture are copied within the graph, and read or written by the host
between replays; other results lie in the graph's pool, which kernels reuse.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

SCORES_TARGET = "sglang.srt.speculative.eagle_worker_v2.organize_draft_results"
ROUTER_TARGET = "sglang.srt.layers.moe.topk.select_experts"


class Scores:
    """The path probabilities of the last draft, float32 [B, N - 1].

    Drafts that are larger than the buffer are not kept.
    """

    def __init__(self) -> None:
        self._buffer = torch.empty(0, 0)

    def allocate(
        self, requests: int, draft_tokens: int, device: torch.device | str
    ) -> None:
        """Make room for the largest batch; before the draft graphs are captured."""
        self._buffer = torch.zeros(requests, draft_tokens - 1, device=device)

    def keep(
        self,
        original: Callable[..., Any],
        score_list: Sequence[Tensor],
        token_list: Sequence[Tensor],
        parents_list: Sequence[Tensor],
        draft_tokens: int,
    ) -> Any:
        chosen = original(score_list, token_list, parents_list, draft_tokens)
        index, (rows, nodes) = chosen[1], self._buffer.shape
        if len(index) <= rows and index.shape[1] == nodes:
            scores = torch.cat(list(score_list), dim=1).flatten(1)
            self._buffer[: len(index)].copy_(scores.gather(1, index))
        return chosen

    def last(self, requests: int) -> Tensor:
        """Scores of the last draft: a view that the next draft overwrites."""
        return self._buffer[:requests]


class RouteBuffers:
    """Buffers of routes, int32 [tokens, k] for each MoE layer, and their hook.

    All MoE backends behind `select_experts` read its ids: overwriting them (`forcing`)
    makes an exact union, and a copy (`recording`) shows what ran.
    """

    def __init__(self) -> None:
        self.recording = self.forcing = False
        self.recorded: dict[int, Tensor] = {}
        self.forced: dict[int, Tensor] = {}

    def allocate(
        self, layers: list[int], tokens: int, top_k: int, device: torch.device | str
    ) -> None:
        for buffers in (self.recorded, self.forced):
            for layer in layers:
                buffers[layer] = torch.zeros(
                    (tokens, top_k), dtype=torch.int32, device=device
                )

    def select(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The hook around `select_experts`; weights of forced routes are equal."""
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
        """Experts that the last forward ran: int32 [layers, tokens, k], on the CPU."""
        rows = [self.recorded[layer][:tokens] for layer in sorted(self.recorded)]
        return torch.stack(rows).cpu()
