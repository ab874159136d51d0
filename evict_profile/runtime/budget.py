"""Expert budgets: a forward activates at most B experts of each layer (MoE-Spec).

The tokens of a draft tree are verified together, and each further expert that any of
them wakes is read from memory. A budget keeps, layer by layer, the B experts to which
the router gave most over all tokens (arXiv 2602.16052), and lets no other run. It is
lossy: what is verified against is no longer the target, but the target with fewer
experts. Only where B experts are enough for all that so many tokens could want nothing
gives way, and they are routed as without a budget.

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

Ranking = Literal["mass", "top-k"]
"""Whether what a router gives to experts that a token would not run counts as well."""

RANKINGS: tuple[Ranking, ...] = get_args(Ranking)

Scoring = Literal["softmax", "sigmoid"]

MOST_EXPERTS = 1 << 20
"""Above any expert's index."""

SMALLEST = torch.finfo(torch.float32).tiny
"""What a sum of weights is at least taken for."""


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
    ranking: Ranking = "mass",
) -> Routes:
    """Route tokens to the B experts that they together want most.

    Where it `holds_all`, nothing is ranked and nothing lost: tiny trees lose less by
    "mass" than MoE-Spec's rule would have them lose. Ranked by "top-k", tokens of
    positive weight that would activate no more than B experts between them lose none
    either; by "mass" an expert that no token runs can outrank one that some token runs.

    Args:
        probabilities: floats [T, E], what the router gives each expert.
        top_k: experts that a token runs.
        budget: experts that may run, from `top_k` to E; E leaves all as it was.
        renormalise: whether the model's router divides the weights that are run by
            their sum (`norm_topk_prob`), as against using the probabilities.
        mode: what happens to a token that loses an expert.
        node_weights: floats [T], how much each token counts in the ranking, such as the
            path probability of its node; 0 for the padding rows of a graph.
        ranking: which of a token's probabilities count: all, or its `top_k` largest.

    Raises:
        ConfigError: no layer could keep such a budget; or an unknown mode or ranking.
    """
    tokens, experts = probabilities.shape
    check(top_k, budget, experts, mode, ranking)
    if holds_all(tokens, top_k, budget, experts):
        return _naturally(probabilities.float(), top_k, renormalise)
    probabilities = probabilities.float()
    counted = probabilities
    if ranking == "top-k":
        counted = among_top_k(probabilities, top_k)
    kept = _largest(expert_mass(counted, node_weights), budget)
    return _within(probabilities, top_k, kept, renormalise, mode)


def holds_all(tokens: int, top_k: int, budget: int, experts: int) -> bool:
    """Whether a budget has room for all experts that so many tokens could run.

    Shapes tell, so a CUDA graph is captured as one or the other. Who has the model's
    own router at hand may then leave it to that.
    """
    return min(tokens * top_k, experts) <= budget


def kept_experts(mass: Tensor, budget: int) -> Tensor:
    """Which experts a budget keeps, int64 [B], in order of index.

    Args:
        mass: floats [E], what ranks the experts; of equals the first is kept.
        budget: experts that may run, at most E.
    """
    return _largest(mass, budget).sort().values


def route_within(
    probabilities: Tensor,
    top_k: int,
    kept: Tensor,
    *,
    renormalise: bool,
    mode: Mode = "substitution",
) -> Routes:
    """Route tokens to experts that something else has chosen.

    Args:
        probabilities: floats [T, E], what the router gives each expert.
        top_k: experts that a token runs.
        kept: int64 [B], the experts that may run, each once, at least `top_k`, in any
            order. Nothing here can check that without reading them.
        renormalise: as `route` has it.
        mode: as `route` has it.
    """
    return _within(probabilities.float(), top_k, kept, renormalise, mode)


def check(
    top_k: int,
    budget: int,
    experts: int,
    mode: str = "substitution",
    ranking: str = "mass",
) -> None:
    """Refuse what no layer with so many experts can keep.

    Raises:
        ConfigError: in one sentence, with what there is to choose from.
    """
    if mode not in MODES:
        raise ConfigError(f"unknown mode {mode!r} of expert budgets: use {MODES}")
    if ranking not in RANKINGS:
        raise ConfigError(
            f"unknown ranking {ranking!r} of expert budgets: use {RANKINGS}"
        )
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
    return probabilities.nansum(dim=0)


def among_top_k(probabilities: Tensor, top_k: int) -> Tensor:
    """What the router gives the experts that each token would run, else 0, [T, E].

    Args:
        probabilities: float32 [T, E].
        top_k: experts that a token runs.
    """
    ids = _best(probabilities, top_k)
    return torch.zeros_like(probabilities).scatter_(
        1, ids, probabilities.gather(1, ids)
    )


def _largest(mass: Tensor, budget: int) -> Tensor:
    """The experts of largest mass, int64 [B], the largest first."""
    return mass.sort(descending=True, stable=True).indices.narrow(0, 0, budget)


def _naturally(probabilities: Tensor, top_k: int, renormalise: bool) -> Routes:
    """As without a budget."""
    ids = _best(probabilities, top_k)
    weights = probabilities.gather(1, ids)
    return Routes(_shares(weights) if renormalise else weights, ids)


def _within(
    probabilities: Tensor, top_k: int, kept: Tensor, renormalise: bool, mode: Mode
) -> Routes:
    if mode == "substitution":
        ids = _substituted(probabilities, top_k, kept)
        weights = probabilities.gather(1, ids)
    else:
        ids, runs = _truncated(probabilities, top_k, kept)
        weights = torch.where(runs, probabilities.gather(1, ids), 0.0)
    return Routes(_shares(weights) if renormalise else weights, ids)


def _best(probabilities: Tensor, top_k: int) -> Tensor:
    """Each token's best among all experts, int64 [T, k]."""
    keys = _keys(probabilities, _all(probabilities))
    return keys.topk(top_k, dim=1, largest=False).indices


def _all(probabilities: Tensor) -> Tensor:
    return torch.arange(probabilities.shape[1], device=probabilities.device)


def _substituted(probabilities: Tensor, top_k: int, kept: Tensor) -> Tensor:
    """Each token's best among the kept experts."""
    keys = _keys(probabilities.index_select(1, kept), kept)
    return kept.take(keys.topk(top_k, dim=1, largest=False).indices)


def _truncated(
    probabilities: Tensor, top_k: int, kept: Tensor
) -> tuple[Tensor, Tensor]:
    """Each token's natural experts, in place of those not kept others; and which run.

    Kernels run every id that they are given, so a place left free must name an expert
    that runs anyhow, for some token; only where fewer than k run in all, a kept one is
    run for nothing. All k differ, because SGLang's native kernel counts a token once
    an expert. An id of -1 would not do: SGLang's Triton kernel skips it under expert
    parallelism only, and otherwise reads before the first expert.
    """
    keys = _keys(probabilities, _all(probabilities))
    last = keys.topk(top_k, dim=1, largest=False).values.narrow(1, top_k - 1, 1)
    offered = keys.index_select(1, kept)
    active = (offered <= last).any(dim=0)
    spare_last = torch.where(active, offered, kept + MOST_EXPERTS)
    best, places = spare_last.topk(top_k, dim=1, largest=False)
    return kept.take(places), best <= last


def _keys(probabilities: Tensor, experts: Tensor) -> Tensor:
    """Integers, int64 [T, n], the smallest for the best expert, and no two alike.

    Singles without a sign rank as their bits do; where those are equal, experts, int64
    [n], do. So `topk` will do, which leaves the order of equals open: a stable sort of
    whole rows takes several times as long.
    """
    return torch.sub(experts, probabilities.view(torch.int32), alpha=MOST_EXPERTS)


def _shares(weights: Tensor) -> Tensor:
    """Each row divided by its sum; a row of zeros stays one."""
    return weights / weights.sum(dim=1, keepdim=True).clamp_(min=SMALLEST)
