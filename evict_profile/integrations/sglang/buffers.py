"""Buffers beside captured graphs: the drafter's scores, and the experts that ran.

Buffers made before capture are copied within the graph, and read or written by the host
between replays; other results lie in the graph's pool, which kernels reuse.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from evict_profile.integrations.sglang.compat import assigned

SCORES_TARGET = "sglang.srt.speculative.eagle_worker_v2.organize_draft_results"
DRAFTER = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker."
CHAIN_TARGET = DRAFTER + "draft_forward"
EXTEND_TARGET = DRAFTER + "_draft_extend_for_decode"
ROUTER_TARGET = "sglang.srt.layers.moe.topk.select_experts"


class Scores:
    """The path probabilities of the last draft, float32 [B, N - 1].

    Drafts of another width are not kept. A captured batch may have more rows than the
    request pool, which padding fills. SGLang drafts a chain without probabilities
    (`topk_p` is 1); they are taken from the logits of its drafter.
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
        self._store(torch.cat(list(score_list), dim=1).flatten(1).gather(1, chosen[1]))
        return chosen

    def keep_chain(self, original: Callable[..., Any], drafter: Any, batch: Any) -> Any:
        """The hook around `draft_forward`; draft graphs capture it."""
        if not self._keeps_chains(drafter) or batch.forward_mode.is_idle():
            return original(drafter, batch)
        each = [batch.spec_info.topk_p]
        with _watching(drafter, lambda out: each.append(best_probability(out))):
            drafted = original(drafter, batch)
        self._store(torch.cat(each, dim=1).cumprod(dim=1))
        return drafted

    def keep_first(
        self, original: Callable[..., Any], drafter: Any, batch: Any, result: Any
    ) -> None:
        """The hook around the drafter's extension, which drafts a chain's first token.

        SGLang keeps `topk_p` with the request until the next step.
        """
        if not self._keeps_chains(drafter):
            original(drafter, batch, result)
            return
        outputs: list[Any] = []
        with _watching(drafter, outputs.append):
            original(drafter, batch, result)
        result.next_draft_input.topk_p = best_probability(outputs[-1])

    def _store(self, scores: Tensor) -> None:
        rows, nodes = self._buffer.shape
        if scores.shape[1] == nodes:
            self._buffer[: len(scores)].copy_(scores[:rows])

    def _keeps_chains(self, drafter: Any) -> bool:
        return drafter.topk == 1 and len(self._buffer) > 0

    def last(self, requests: int) -> Tensor:
        """Scores of the last draft: a view that the next draft overwrites."""
        return self._buffer[:requests]


@contextmanager
def _watching(drafter: Any, see: Callable[[Any], None]) -> Iterator[None]:
    """Show what the drafter's forwards return; eager, and replayed extensions."""

    def seen(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            out = forward(*args, **kwargs)
            see(getattr(out, "logits_output", out))
            return out

        return run

    runner, replayed = drafter.draft_runner, drafter.cuda_graph_runner_for_draft_extend
    with ExitStack() as stack:
        stack.enter_context(assigned(runner, forward=seen(runner.forward)))
        if replayed:
            stack.enter_context(assigned(replayed, execute=seen(replayed.execute)))
        yield


def best_probability(output: Any) -> Tensor:
    """float32 [B, 1], probability of the token that a greedy drafter takes."""
    logits = output.next_token_logits
    return torch.softmax(logits, dim=-1, dtype=torch.float32).amax(-1, keepdim=True)


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
