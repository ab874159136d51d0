"""Expert budgets in the engine: which experts a verification may activate.

A budget stands between the router and the experts of each layer. Prompts run without
one. What servers can do is `runtime.budget.route`, the very same; beside it stand
rankings to compare with, one that knows less and one that knows everything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from evict_profile.errors import ConfigError
from evict_profile.runtime.budget import (
    Mode,
    check,
    expert_mass,
    holds_all,
    kept_experts,
    route,
    route_within,
)
from runners.protocol import Message, Refusal
from runners.torch_moe.model import Experts, MoeLayer
from runners.tree_decoding.engine import Engine, accepted_paths
from runners.tree_decoding.tree import Trees
from runners.tree_decoding.verifier import Routing, Verified

Ranking = Literal["mass", "top-k", "kept", "oracle"]


@dataclass(frozen=True)
class ExpertBudget:
    """What every verification keeps to; a budget hook of the engine.

    Attributes:
        per_layer: experts that each layer may activate.
        mode: what happens to a token that loses an expert.
        ranking: `mass` and `top-k`, see `route`; `kept`, fixed beforehand; `oracle`,
            see `hindsight`.
        exponent: each token counts, for the first two, as its path probability to this
            power: 0 counts all alike.
        kept: experts of each layer, int64 [budget], for the ranking `kept`.
    """

    per_layer: tuple[int, ...]
    mode: Mode = "substitution"
    ranking: Ranking = "mass"
    exponent: float = 0.0
    kept: tuple[Tensor, ...] = ()

    def __call__(
        self, engine: Engine, trees: Sequence[Trees], rerun: Callable[[], Verified]
    ) -> Routing:
        if self.ranking == "oracle":
            return self.routing(accepted_tokens(engine, trees, rerun()))
        if not self.exponent:
            return self.routing(None)
        chances = [p for t in trees for p in (1.0, *t.path_prob[0].tolist())]
        return self.routing(
            torch.tensor(chances, device=engine.device) ** self.exponent
        )

    def routing(self, weights: Tensor | None) -> Routing:
        """Between the router of each layer and its experts.

        `weights` [T] say how much each token counts; None counts all alike.
        """
        return partial(self._route, weights)

    def _route(
        self, weights: Tensor | None, index: int, layer: MoeLayer, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        moe, budget = layer.router.moe, self.per_layer[index]
        if self.ranking == "mass" or self.ranking == "top-k":
            if holds_all(len(x), moe.top_k, budget, moe.num_experts):
                return layer.router(x)
            found = route(
                layer.router.scores(x),
                moe.top_k,
                budget,
                renormalise=True,
                mode=self.mode,
                node_weights=weights,
                ranking=self.ranking,
            )
            return found.topk_ids, found.topk_weights.to(x.dtype)
        scores = layer.router.scores(x)
        if self.ranking == "kept":
            kept = self.kept[index]
        else:
            assert weights is not None
            kept = hindsight(layer, x, scores, weights > 0.0, budget)
        found = route_within(scores, moe.top_k, kept, renormalise=True, mode=self.mode)
        return found.topk_ids, found.topk_weights.to(x.dtype)


def accepted_tokens(
    engine: Engine, trees: Sequence[Trees], verified: Verified
) -> Tensor:
    """1 for roots and for nodes that the target accepts, else 0; [T]."""
    out: list[float] = []
    paths = accepted_paths(trees, engine.wanted(trees, verified))
    for tree, path in zip(trees, paths, strict=True):
        accepted = {0, *(node + 1 for node in path)}
        out += [float(row in accepted) for row in range(1 + tree.token.shape[1])]
    return torch.tensor(out, device=engine.device)


def hindsight(
    layer: MoeLayer, x: Tensor, scores: Tensor, accepted: Tensor, budget: int
) -> Tensor:
    """The experts that someone would keep who knew everything, int64 [budget].

    Greedily those, of the experts that accepted tokens run, without which the layer's
    output for these tokens would be furthest off, in squared error; each token runs
    the best of what is kept. What room is left goes by mass.
    """
    own, top_k = scores[accepted], layer.router.moe.top_k
    outputs = every_output(layer.experts, x[accepted])
    wanted = mix(own, outputs, torch.ones_like(own[:1]), top_k)[0]
    natural = own.topk(top_k, dim=1).indices.unique()
    kept = torch.zeros(own.shape[1], device=x.device)
    for _ in range(min(budget, len(natural))):
        tried = kept.repeat(len(natural), 1)
        tried[torch.arange(len(natural)), natural] = 1.0
        errors = (mix(own, outputs, tried, top_k) - wanted).square().sum(dim=(1, 2))
        # One that is kept already changes nothing, and must not win a tie.
        errors[kept[natural] > 0.0] = torch.inf
        kept[natural[errors.argmin()]] = 1.0
    # No sum of probabilities reaches 1 a token, so that what is chosen stays first.
    return kept_experts(expert_mass(scores) + kept * len(scores), budget)


def every_output(experts: Experts, x: Tensor) -> Tensor:
    """What each expert makes of each token, [A, E, D] for x [A, D]."""
    gate, up = torch.einsum("ad,ehd->aeh", x, experts.gate_up).chunk(2, dim=-1)
    return torch.einsum("aew,edw->aed", F.silu(gate) * up, experts.down)


def mix(scores: Tensor, outputs: Tensor, kept: Tensor, top_k: int) -> Tensor:
    """What a layer puts out if only some experts are kept, [C, A, D].

    Args:
        scores: the router's, [A, E].
        outputs: of each expert, [A, E, D].
        kept: 1 for those that are, 0 for others; one row a choice, [C, E].
        top_k: experts that a token runs, where so many are kept.
    """
    open_to = scores * kept.unsqueeze(1)
    weights, ids = open_to.topk(top_k, dim=2)
    # A token that wants nothing of what is kept gets nothing, and no NaN.
    smallest = torch.finfo(weights.dtype).tiny
    shares = weights / weights.sum(dim=2, keepdim=True).clamp_(min=smallest)
    rows = torch.arange(len(scores), device=scores.device)[:, None]
    return (outputs[rows, ids] * shares.unsqueeze(-1)).sum(dim=2)


def make_budget(
    ask: Message, top_k: int, experts: int, device: torch.device
) -> ExpertBudget | None:
    """The budget that a request names; None where it names none."""
    if ask["per_layer"] is None:
        return None
    try:
        for count in ask["per_layer"]:
            check(top_k, count, experts, ask["mode"])
    except ConfigError as error:
        raise Refusal("world", str(error)) from error
    kept = (torch.tensor(sorted(layer), device=device) for layer in ask["kept"] or ())
    return ExpertBudget(
        per_layer=tuple(ask["per_layer"]),
        mode=ask["mode"],
        ranking=ask["ranking"],
        exponent=ask["exponent"],
        kept=tuple(kept),
    )
