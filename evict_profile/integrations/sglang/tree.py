"""SGLang's draft tree, as its drafter returns it, its scores, and its truncation.

A node is a flat index into all drafted nodes: `topk` on the first level, then `topk` x
`topk` a level, so parents have smaller ones. `parent_list` has the flat index of each
sibling group's parent, -1 for the root.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from evict_profile.integrations.sglang.compat import assigned

SCORES_TARGET = "sglang.srt.speculative.eagle_worker_v2.organize_draft_results"
DRAFTER = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker."
CHAIN_TARGET = DRAFTER + "draft_forward"
EXTEND_TARGET = DRAFTER + "_draft_extend_for_decode"

Ints = NDArray[np.int64]


def parents(index: Any, parent_list: Any, topk: int, library: Any) -> Any:
    """int64 [B, M], place of each node's parent in its row, -1 under the root.

    A node whose parent was not chosen (SGLang ignores it, on ties) is its own parent.
    `library` is torch, or numpy on the host, which takes 1 us an operation, not 2 to
    10.
    """
    (batch, nodes), groups = index.shape, parent_list.shape[1]
    if not groups:
        return library.full_like(index, -1)
    row = library.arange(batch, device=index.device)[:, None]
    own = library.arange(nodes, device=index.device)
    # By flat index, the place of each chosen node; before them the root, -1.
    place = library.full((batch, 1 + groups * topk), nodes, device=index.device)
    place[:, 0] = -1
    begin = 1 + row * place.shape[1]
    place.reshape(-1)[begin + index] = own
    found = place.take(begin + parent_list.take(row * groups + index // topk))
    return library.where(found < nodes, found, own)


def depths(index: Ints, topk: int) -> Ints:
    """int64 [B, M], level of each node, 1 under the root."""
    return (index - topk) // topk**2 + 2


@dataclass(frozen=True)
class Drafted:
    """Draft trees of a batch, roots excluded: `parent_list` int64 [B, G], the rest [B,
    M], in order of `index`. `path_prob` is the drafter's product from the root.
    """

    parent_list: Tensor
    index: Tensor
    tokens: Tensor
    path_prob: Tensor
    topk: int

    @property
    def width(self) -> int:
        return self.index.shape[1] + 1

    @cached_property
    def parent(self) -> Tensor:
        """int64 [B, M]; see `parents`."""
        found: Tensor = parents(self.index, self.parent_list, self.topk, torch)
        return found

    def each(self, change: Callable[[Tensor], Tensor]) -> "Drafted":
        tensors = self.parent_list, self.index, self.tokens, self.path_prob
        parent_list, index, tokens, path_prob = map(change, tensors)
        return Drafted(parent_list, index, tokens, path_prob, self.topk)

    def at(self, places: Tensor) -> "Drafted":
        """The nodes in these places, int64 [B, m], increasing."""
        places = places.to(self.index.device, non_blocking=True)
        return replace(
            self,
            index=self.index.gather(1, places),
            tokens=self.tokens.gather(1, places),
            path_prob=self.path_prob.gather(1, places),
        )


def whole_chain(drafted: Tensor, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """SGLang's groups of parents, indices and tokens of a chain, int64 [B, nodes] each;
    token 0 fills the levels that were not drafted.
    """
    index = torch.arange(nodes, device=drafted.device).repeat(len(drafted), 1)
    return index - 1, index, pad(drafted, (0, nodes - drafted.shape[1]))


def best_nodes(drafted: Drafted, width: int, scores: Tensor | None = None) -> Tensor:
    """Places of the best nodes of each tree, by `scores` [B, M], then by path
    probability: int64 [B, width - 1].

    Each request verifies `width` tokens, its root included. Nodes stay in order of flat
    indices for SGLang's kernel. The sort is stable, which `torch.topk` is not: a child
    with probability 1.0 ties its parent, which comes first; so ancestors are kept.
    """
    if not 1 <= width <= drafted.width:
        raise ValueError(f"width {width} is not within 1..{drafted.width}")
    order = torch.sort(drafted.path_prob, dim=1, descending=True, stable=True).indices
    if scores is not None:
        ranked = scores.gather(1, order)
        by_score = torch.sort(ranked, dim=1, descending=True, stable=True).indices
        order = order.gather(1, by_score)
    return torch.sort(order[:, : width - 1], dim=1).values


class Scores:
    """The path probabilities of the last draft, float32 [B, N - 1].

    They are in a buffer made before capture, since a graph's own results lie in a pool
    that kernels reuse. Drafts of another width are not kept. A captured batch may have
    more rows than the request pool, which padding fills. SGLang drafts a chain without
    probabilities (`topk_p` is 1); they are taken from the logits of its drafter.

    `see`, if set before capture, is given each tree that is kept, in draft graphs.
    `guarded` is around all that is not SGLang's own.
    """

    def __init__(
        self, guarded: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self._guarded = guarded
        self.allocate(0, 1, "cpu")

    def allocate(
        self, requests: int, draft_tokens: int, device: torch.device | str
    ) -> None:
        """Make room for the largest batch; before the draft graphs are captured."""
        self._buffer = torch.zeros(requests, draft_tokens - 1, device=device)
        self.see: Callable[[Drafted], None] | None = None

    def keep(
        self,
        original: Callable[..., Any],
        score_list: Sequence[Tensor],
        token_list: Sequence[Tensor],
        parents_list: Sequence[Tensor],
        draft_tokens: int,
    ) -> Any:
        chosen = original(score_list, token_list, parents_list, draft_tokens)
        with self._guarded():
            (parent_list, index, tokens), topk = chosen, score_list[0].shape[-1]
            scores = torch.cat(list(score_list), dim=1).flatten(1).gather(1, index)
            self._store(scores)
            if self.see and draft_tokens == self._buffer.shape[1] + 1:
                self.see(Drafted(parent_list, index, tokens, scores, topk))
        return chosen

    def keep_chain(self, original: Callable[..., Any], drafter: Any, batch: Any) -> Any:
        """The hook around `draft_forward`; draft graphs capture it."""
        if not self._keeps_chains(drafter) or batch.forward_mode.is_idle():
            return original(drafter, batch)
        each = [batch.spec_info.topk_p]
        with self._watching(drafter, lambda out: each.append(best_probability(out))):
            drafted = original(drafter, batch)
        with self._guarded():
            scores, nodes = torch.cat(each, dim=1).cumprod(dim=1), self._buffer.shape[1]
            if len(each) == drafter.speculative_num_steps < nodes:
                # Levels that were not drafted have a probability of 0.
                scores = pad(scores, (0, nodes - len(each)))
            self._store(scores)
        return drafted

    def keep_first(
        self,
        original: Callable[..., Any],
        drafter: Any,
        batch: Any,
        result: Any,
        **kwargs: Any,
    ) -> None:
        """The hook around the drafter's extension, which drafts a chain's first token.

        SGLang keeps `topk_p` with the request until the next step.
        """
        extend = partial(original, drafter, batch, result, **kwargs)
        if not self._keeps_chains(drafter):
            extend()
            return
        outputs: list[Any] = []
        with self._watching(drafter, outputs.append):
            extend()
        with self._guarded():
            result.next_draft_input.topk_p = best_probability(outputs[-1])

    def _store(self, scores: Tensor) -> None:
        rows, nodes = self._buffer.shape
        if scores.shape[1] == nodes:
            self._buffer[: len(scores)].copy_(scores[:rows])

    def _keeps_chains(self, drafter: Any) -> bool:
        return drafter.topk == 1 and len(self._buffer) > 0

    @contextmanager
    def _watching(self, drafter: Any, see: Callable[[Any], None]) -> Iterator[None]:
        """Show what the drafter's forwards return; eager, and replayed extensions."""

        def seen(forward: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                out = forward(*args, **kwargs)
                with self._guarded():
                    see(getattr(out, "logits_output", out))
                return out

            return run

        with ExitStack() as stack:
            with self._guarded():
                runner = drafter.draft_runner
                stack.enter_context(assigned(runner, forward=seen(runner.forward)))
                if replayed := drafter.cuda_graph_runner_for_draft_extend:
                    execute = seen(replayed.execute)
                    stack.enter_context(assigned(replayed, execute=execute))
            yield

    def last(self, requests: int) -> Tensor:
        """Scores of the last draft: a view that the next draft overwrites."""
        return self._buffer[:requests]


def best_probability(output: Any) -> Tensor:
    """float32 [B, 1], probability of the token that a greedy drafter takes."""
    logits = output.next_token_logits
    # torch.logsumexp writes [B, V] as well, and took up to twice as long on a CPU.
    return torch.softmax(logits, dim=-1, dtype=torch.float32).amax(-1, keepdim=True)
