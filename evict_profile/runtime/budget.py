"""Expert budgets: a forward activates at most B experts of each layer (MoE-Spec).

Layer by layer the B experts with the largest sum of router probabilities stay (arXiv
2602.16052); a token that loses an expert takes its next best. Lossy unless B holds all
that the tokens could run.

Shapes are fixed and the host reads no value, so a CUDA graph can capture it. Ties go to
the expert of lower index, as in SGLang's router.
"""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from evict_profile.errors import ConfigError

Ranking = Literal["mass", "top-k"]
"""Whether probabilities of experts that a token would not run count as well."""

RANKINGS: tuple[Ranking, ...] = get_args(Ranking)

RouterScoring = Literal["softmax", "sigmoid"]

MOST_EXPERTS = 1 << 20

SMALLEST = torch.finfo(torch.float32).tiny
"""The least that weights are divided by."""


class Routes(NamedTuple):
    """Which experts each token runs, [T, k], the most probable first."""

    topk_weights: Tensor
    topk_ids: Tensor


def route(
    probabilities: Tensor,
    top_k: int,
    budget: int,
    *,
    renormalise: bool,
    node_weights: Tensor | None = None,
    ranking: Ranking = "mass",
) -> Routes:
    """Route tokens to the B experts that they together want most.

    Ranked by "top-k", tokens of positive weight that together activate at most B
    experts lose none; by "mass" an expert that no token runs can outrank one that some
    token runs.

    Args:
        probabilities: floats [T, E], by the router.
        top_k: experts that a token runs.
        budget: experts that may run, from `top_k` to E.
        renormalise: whether weights are divided by their sum (`norm_topk_prob`).
        node_weights: floats [T], weight of each token in the ranking; 0 for padding.
        ranking: which of a token's probabilities count: all, or its `top_k` largest.
    """
    tokens, experts = probabilities.shape
    check(top_k, budget, experts, ranking)
    probabilities = probabilities.float()
    kept = torch.arange(experts, device=probabilities.device)
    if not holds_all(tokens, top_k, budget, experts):
        counted = probabilities
        if ranking == "top-k":
            ids = _best(probabilities, top_k, kept)
            natural = probabilities.gather(1, ids)
            counted = torch.zeros_like(probabilities).scatter_(1, ids, natural)
        if node_weights is not None:
            counted = counted * node_weights[:, None]
        mass = counted.nansum(dim=0)
        kept = mass.sort(descending=True, stable=True).indices.narrow(0, 0, budget)
    ids = _best(probabilities, top_k, kept)
    weights = probabilities.gather(1, ids)
    return Routes(_shares(weights) if renormalise else weights, ids)


def holds_all(tokens: int, top_k: int, budget: int, experts: int) -> bool:
    """Whether a budget holds all experts that so many tokens could run; by shapes
    alone.
    """
    return min(tokens * top_k, experts) <= budget


def check(top_k: int, budget: int, experts: int, ranking: str = "mass") -> None:
    """Refuse a budget that no layer with so many experts can keep."""
    if ranking not in RANKINGS:
        raise ConfigError(
            f"unknown ranking {ranking!r} of expert budgets: use {RANKINGS}"
        )
    if not 1 <= top_k <= budget <= experts:
        raise ConfigError(
            f"an expert budget of {budget} cannot be kept by a layer in which tokens "
            f"run {top_k} of {experts} experts: choose one from {top_k} to {experts}"
        )


def probabilities_of(logits: Tensor, scoring: RouterScoring) -> Tensor:
    """Router probabilities, float32 [T, E]; every row adds up to 1.

    Sigmoid scores are scaled to 1 too, so all tokens have the same weight; a router
    that renormalises is reproduced.
    """
    if scoring == "softmax":
        return logits.float().softmax(dim=1)
    return _shares(logits.float().sigmoid())


def _best(probabilities: Tensor, top_k: int, kept: Tensor) -> Tensor:
    """Each token's best among the kept experts, int64 [T, k].

    Positive floats rank as their bits do. Distinct integer keys fix the order of ties,
    which `topk` leaves open; a stable sort takes several times as long.
    """
    offered = probabilities.index_select(1, kept).view(torch.int32)
    keys = torch.sub(kept, offered, alpha=MOST_EXPERTS)
    return kept.take(keys.topk(top_k, dim=1, largest=False).indices)


def _shares(weights: Tensor) -> Tensor:
    """Each row divided by its sum; a row of zeros stays one."""
    return weights / weights.sum(dim=1, keepdim=True).clamp_(min=SMALLEST)
