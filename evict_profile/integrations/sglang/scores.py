"""Keeping the drafter's scores, which SGLang throws away once the tree is chosen.

The hook runs inside the captured draft graph. What it computes there lies in the
graph's pool, which later kernels reuse; so the scores are copied into a buffer made
beforehand, and each replay fills it anew.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

TARGET = "sglang.srt.speculative.eagle_worker_v2.organize_draft_results"


class Scores:
    """The path probabilities of the last draft, float32 [B, N - 1]."""

    def __init__(self) -> None:
        """Nothing is kept before `allocate`."""
        self._buffer: Tensor | None = None

    def allocate(
        self, requests: int, draft_tokens: int, device: torch.device | str
    ) -> None:
        """Make room for the largest batch; before the draft graphs are captured."""
        shape = (requests, draft_tokens - 1)
        self._buffer = torch.zeros(shape, dtype=torch.float32, device=device)

    def keep(
        self,
        original: Callable[..., Any],
        score_list: Sequence[Tensor],
        token_list: Sequence[Tensor],
        parents_list: Sequence[Tensor],
        draft_tokens: int,
    ) -> Any:
        """The hook around `organize_draft_results`."""
        chosen = original(score_list, token_list, parents_list, draft_tokens)
        index = chosen[1]
        if self._holds(index):
            scores = torch.cat(list(score_list), dim=1).flatten(1)
            assert self._buffer is not None
            self._buffer[: len(index)].copy_(scores.gather(1, index))
        return chosen

    def last(self, requests: int) -> Tensor:
        """Scores of the last draft: a view that the next draft overwrites."""
        assert self._buffer is not None
        return self._buffer[:requests]

    def _holds(self, index: Tensor) -> bool:
        buffer = self._buffer
        return (
            buffer is not None
            and len(index) <= len(buffer)
            and index.shape[1] == buffer.shape[1]
        )
