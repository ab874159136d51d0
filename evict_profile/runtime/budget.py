"""Expert budgets: a forward wakes at most B experts of each layer (MoE-Spec).

The tokens of a draft tree are verified together, and each further expert that any of
them wakes is read from memory. A budget keeps, layer by layer, the B experts to which
the router gave most over all tokens (arXiv 2602.16052), and lets no other run. It is
lossy: what is verified against is no longer the target, but the target with fewer
experts.

Fixed shapes and no value read by the host, so that a CUDA graph can hold it. Wherever
two are equal, the expert of lower index stands first, as in SGLang's own router.
"""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from evict_profile.errors import ConfigError

Mode = Literal["substitution", "truncation"]
"""Whether a token takes its next best expert for one that is not kept, or none."""

MODES: tuple[Mode, ...] = get_args(Mode)

Scoring = Literal["softmax", "sigmoid"]


class Routes(NamedTuple):
    """Which experts each token runs, the most probable first.

    Attributes:
        topk_weights: float32 [T, k].
        topk_ids: int64 [T, k]; all of them kept, no two of a token alike. Truncation
            puts weight 0 in the place of an expert that is not run.
    """

    topk_weights: Tensor
    topk_ids: Tensor


def route(
    probabilities: Tensor,
    top_k: int,
    budget: int,
    *,
    renormalise: bool,
    mode: Mode = "substitution",
    node_weights: Tensor | None = None,
) -> Routes:
    """Route tokens to the B experts that they together want most.

    Args:
        probabilities: floats [T, E], what the router gives each expert.
        top_k: experts that a token runs.
        budget: experts that may run, from `top_k` to E; E leaves all as it was.
        renormalise: whether the model's router divides the weights that are run by
            their sum (`norm_topk_prob`), as against using the probabilities.
        mode: what happens to a token that loses an expert.
        node_weights: floats [T], how much each token counts in the ranking, such as the
            path probability of its node; 0 for the padding rows of a graph.
    """
    check(top_k, budget, probabilities.shape[1], mode)
    probabilities = probabilities.float()
    mass = expert_mass(probabilities, node_weights)
    kept = mass.argsort(descending=True, stable=True)[:budget].sort().values
    if mode == "substitution":
        weights, ids = _substituted(probabilities, top_k, kept)
    else:
        weights, ids = _truncated(probabilities, top_k, kept)
    return Routes(_shares(weights) if renormalise else weights, ids)


def check(top_k: int, budget: int, experts: int, mode: str = "substitution") -> None:
    """Refuse a budget that a layer with so many experts cannot keep."""
    if mode not in MODES:
        raise ConfigError(f"unknown mode {mode!r} of expert budgets: use {MODES}")
    if not 1 <= top_k <= budget <= experts:
        raise ConfigError(
            f"an expert budget of {budget} cannot be kept by a layer in which tokens "
            f"run {top_k} of {experts} experts: choose one from {top_k} to {experts}"
        )


def probabilities_of(logits: Tensor, scoring: Scoring) -> Tensor:
    """What a router gives each expert, float32 [T, E], every row adding up to 1.

    Sigmoid scores are brought to 1 as well, so that all tokens have the same say in the
    ranking. That changes neither a token's order of experts nor the ratio of any two
    weights, so a router that renormalises is reproduced exactly, and no other is.
    """
    if scoring == "softmax":
        return logits.float().softmax(dim=1)
    return _shares(logits.float().sigmoid())


def expert_mass(probabilities: Tensor, node_weights: Tensor | None = None) -> Tensor:
    """What the router gives each expert over all tokens, [E].

    A NaN counts as nothing, so that one broken row cannot rank for all the others.
    """
    if node_weights is not None:
        probabilities = probabilities * node_weights[:, None]
    return torch.where(probabilities > 0.0, probabilities, 0.0).sum(dim=0)


def _substituted(
    probabilities: Tensor, top_k: int, kept: Tensor
) -> tuple[Tensor, Tensor]:
    """Each token's best among the kept experts, which stand in order of index."""
    weights, places = _ranked(probabilities.index_select(1, kept), top_k)
    return weights, kept.take(places)


def _truncated(
    probabilities: Tensor, top_k: int, kept: Tensor
) -> tuple[Tensor, Tensor]:
    """Each token's natural experts; in place of those not kept, others at weight 0.

    Kernels run every id that they are given, so a place left free must name an expert
    that runs anyhow, for some token; only where fewer than k run in all, a kept one is
    woken for nothing. All k differ, because SGLang's native kernel counts a token once
    an expert. An id of -1 would not do: SGLang's Triton kernel skips it under expert
    parallelism only, and otherwise reads before the first expert.
    """
    natural = _ranked(probabilities, top_k)[1]
    wanted = torch.zeros_like(probabilities, dtype=torch.bool).scatter(1, natural, True)
    runs = wanted.index_select(1, kept)
    offered = probabilities.index_select(1, kept)
    spare = torch.where(runs.any(dim=0), offered - 2.0, -4.0)
    places = _ranked(torch.where(runs, offered, spare), top_k)[1]
    weights = torch.where(runs, offered, 0.0).gather(1, places)
    return weights, kept.take(places)


def _ranked(probabilities: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, and where they stand.

    A stable sort, because `topk` leaves the order of equals open.
    """
    values, places = probabilities.sort(dim=1, descending=True, stable=True)
    return values[:, :top_k], places[:, :top_k]


def _shares(weights: Tensor) -> Tensor:
    """Each row divided by its sum; a row of zeros stays one."""
    smallest = torch.finfo(weights.dtype).tiny
    return weights / weights.sum(dim=1, keepdim=True).clamp(min=smallest)
