"""Expert budgets: a forward activates at most B experts of each layer (MoE-Spec).

Layer by layer the B experts with the largest sum of router probabilities stay (arXiv
2602.16052); a token that loses an expert takes its next best. Lossy unless B holds all
that the tokens could run.

Shapes are fixed and the host reads no value, so a CUDA graph can capture it. Ties go to
the expert of lower index, as in SGLang's router.

Some routers pick experts in another order than that of their weights: by a biased
score, or first within a token's groups (`picking_order`).
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from evict_profile.errors import ConfigError

Ranking = Literal["mass", "top-k", "gate"]
"""What a token counts: the probabilities of all experts, or of those that it would run,
or the weights of those."""

RANKINGS: tuple[Ranking, ...] = get_args(Ranking)

RouterScoring = Literal["softmax", "sigmoid"]

MOST_EXPERTS = 1 << 20

SMALLEST = torch.finfo(torch.float32).tiny
"""The least that weights are divided by."""


IN_GROUP_BONUS = 1 << 32
"""Added to the order of experts of a token's groups; above any 32-bit float."""


@dataclass(frozen=True)
class Groups:
    """A layer's experts in so many equal groups, of which a token picks `kept`."""

    total: int
    kept: int


class Routes(NamedTuple):
    """Which experts each token runs, [T, k], the first picked first."""

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
    order: Tensor | None = None,
) -> Routes:
    """Route tokens to the B experts that they together want most.

    Ranked by "top-k" or "gate", tokens of positive weight that together activate at
    most B experts lose none with a positive weight; by "mass" an expert that no token
    runs can outrank one that some token runs.

    Args:
        probabilities: floats [T, E], by the router; positive scores will do.
        top_k: experts that a token runs.
        budget: experts that may run, from `top_k` to E.
        renormalise: whether weights are divided by their sum (`norm_topk_prob`).
        node_weights: floats [T], weight of each token in the ranking; 0 for padding.
        order: int64 [T, E], as of `picking_order`; None picks by probability.
    """
    tokens, experts = probabilities.shape
    check(top_k, budget, experts, ranking)
    probabilities = probabilities.float()
    order = picking_order(probabilities) if order is None else order
    kept = torch.arange(experts, device=probabilities.device)
    if not holds_all(tokens, top_k, budget, experts):
        counted = probabilities
        if ranking != "mass":
            ids = _best(order, top_k, kept)
            natural = probabilities.gather(1, ids)
            if ranking == "gate" and renormalise:
                natural = _shares(natural)
            counted = torch.zeros_like(probabilities).scatter_(1, ids, natural)
        if node_weights is not None:
            counted = counted * node_weights[:, None]
        mass = counted.nansum(dim=0)
        kept = mass.sort(descending=True, stable=True).indices.narrow(0, 0, budget)
    ids = _best(order, top_k, kept)
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


def scores_of(logits: Tensor, scoring: RouterScoring) -> Tensor:
    """Router scores, float32 [T, E], all positive."""
    logits = logits.float()
    return logits.softmax(dim=1) if scoring == "softmax" else logits.sigmoid()


def picking_order(
    scores: Tensor, bias: Tensor | None = None, groups: Groups | None = None
) -> Tensor:
    """Keys of experts, int64 [T, E]: a token picks the expert of the largest key first.

    Experts of a token's groups come before all others, so that a token with fewer than
    k kept experts there runs the best of other groups. A group's score is its largest
    score, with a bias the sum of the two largest, as in DeepSeek-V2 and V3.

    Args:
        scores: floats [T, E], by the router.
        bias: floats [E], added to pick, not to weigh.
    """
    picked = scores.float() if bias is None else scores.float() + bias.float()
    bits = picked.view(torch.int32)
    # Positive floats rank as their bits do, negative ones the other way round.
    order = torch.where(bits < 0, bits ^ torch.iinfo(torch.int32).max, bits).long()
    if groups is None:
        return order
    by_group = picked.view(len(picked), groups.total, -1)
    best = by_group.topk(1 if bias is None else 2, dim=2).values.sum(dim=2)
    own = best.sort(dim=1, descending=True, stable=True).indices[:, : groups.kept]
    inside = torch.zeros_like(best, dtype=torch.int64).scatter_(1, own, IN_GROUP_BONUS)
    return (order.view_as(by_group) + inside[:, :, None]).flatten(1)


def _best(order: Tensor, top_k: int, kept: Tensor) -> Tensor:
    """Each token's first picks among the kept experts, int64 [T, k].

    Distinct integer keys fix the order of ties, which `topk` leaves open; a stable sort
    takes several times as long.
    """
    keys = torch.sub(kept, order.index_select(1, kept), alpha=MOST_EXPERTS)
    return kept.take(keys.topk(top_k, dim=1, largest=False).indices)


def _shares(weights: Tensor) -> Tensor:
    """Each row divided by its sum; a row of zeros stays one."""
    return weights / weights.sum(dim=1, keepdim=True).clamp_(min=SMALLEST)
