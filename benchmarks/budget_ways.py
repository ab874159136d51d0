"""Ways to route within a budget that budget_overhead.py times, and whether they agree.

Kernels and tensor operations add in another order, so that a near tie of two experts
may fall either way. They are compared where sums are exact, and have to agree in all.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from evict_profile.runtime.budget import Mode, Ranking, Routes, route
from runners.torch_moe.model import Router

TENSORS, TRITON = "tensors", "triton"

GRID = 4096
"""Probabilities that are multiples of 1 / GRID have exact sums, and many ties."""

Routed = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Budgeted:
    """One way to route; as the rows of the result name it."""

    path: str
    mode: Mode
    ranking: Ranking
    budget: int

    def routes(
        self, scores: Tensor, top_k: int, node_weights: Tensor | None = None
    ) -> Routes:
        """What it makes of a router's scores."""
        return route(
            scores,
            top_k,
            self.budget,
            renormalise=True,
            mode=self.mode,
            node_weights=node_weights,
            ranking=self.ranking,
            fused=self.path == TRITON,
        )

    def over(self, router: Router) -> Routed:
        """In the place of a router."""

        def routed(x: Tensor) -> tuple[Tensor, Tensor]:
            weights, ids = self.routes(router.scores(x), router.moe.top_k)
            return ids, weights.to(x.dtype)

        return routed


class Disagreement(Exception):
    """Kernels route otherwise than tensor operations: neither's time means anything."""


def disagreements(
    router: Router, ways: Sequence[Budgeted], tokens: int
) -> Iterator[Budgeted]:
    """Kernels that route otherwise than tensor operations, where sums are exact."""
    scores = (GRID * router.scores(inputs(router, tokens))).round() / GRID
    halves = (torch.arange(tokens, device=scores.device) % 3) / 2
    for way in ways:
        for node_weights in (None, halves):
            given = (scores, router.moe.top_k, node_weights)
            ours, theirs = way.routes(*given), replace(way, path=TENSORS).routes(*given)
            if not alike(ours, theirs):
                yield way
                break


def alike(ours: Routes, theirs: Routes) -> bool:
    """The same experts, weights equal to rounding."""
    ids = torch.equal(ours.topk_ids, theirs.topk_ids)
    return ids and torch.allclose(ours.topk_weights, theirs.topk_weights)


def inputs(router: Router, tokens: int) -> Tensor:
    """Random tokens, as they enter a router."""
    weight = router.weight
    size = (tokens, weight.shape[1])
    return torch.randn(size, device=weight.device, dtype=weight.dtype)
