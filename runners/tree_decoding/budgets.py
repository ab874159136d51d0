"""Expert budgets in the engine: which experts a verification may activate.

A budget stands between the router and the experts of each layer. Prompts run without
one. What servers can do is `runtime.budget.route`, the very same; beside it stand
rankings to compare with, one that knows less and one that knows everything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
from evict_profile.runtime.budget import Routes as Found
from runners.protocol import Message, Refusal
from runners.torch_moe.model import Experts, MoeLayer
from runners.tree_decoding.engine import Engine, Rerun
from runners.tree_decoding.tree import Trees
from runners.tree_decoding.verifier import Routing

Ranking = Literal["mass", "top-k", "kept", "oracle"]


@dataclass(frozen=True)
class Budget:
    """What every verification keeps to.

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
        self, engine: Engine, trees: Sequence[Trees], rerun: Rerun
    ) -> Routing | None:
        """The routing of one verification: an engine's budget hook."""
        return self.routing(self.weights(engine, trees, rerun))

    def weights(
        self, engine: Engine, trees: Sequence[Trees], rerun: Rerun
    ) -> Tensor | None:
        """How much each token counts, [T]; None for all alike.

        The oracle takes 1 for roots and for nodes that will be accepted, else 0.
        """
        if self.ranking == "oracle":
            paths = engine.paths(trees, engine.wanted(trees, rerun()))
            accepted = [
                float(node in (0, *(n + 1 for n in path)))
                for path, tree in zip(paths, trees, strict=True)
                for node in range(1 + tree.token.shape[1])
            ]
            return torch.tensor(accepted, device=engine.device)
        if not self.exponent:
            return None
        chances = [p for t in trees for p in (1.0, *t.path_prob[0].tolist())]
        return torch.tensor(chances, device=engine.device) ** self.exponent

    def routing(self, weights: Tensor | None) -> Routing:
        """Between the router of each layer and its experts; see `weights`."""

        def routed(index: int, layer: MoeLayer, x: Tensor) -> tuple[Tensor, Tensor]:
            if self._is_none(index, layer, x):
                return layer.router(x)
            found = self._routes(index, layer, x, weights)
            return found.topk_ids, found.topk_weights.to(x.dtype)

        return routed

    def _is_none(self, index: int, layer: MoeLayer, x: Tensor) -> bool:
        """Whether so few tokens lose nothing; a fixed choice takes experts from one."""
        moe = layer.router.moe
        room = holds_all(len(x), moe.top_k, self.per_layer[index], moe.num_experts)
        return room and self.ranking in ("mass", "top-k")

    def _routes(
        self, index: int, layer: MoeLayer, x: Tensor, weights: Tensor | None
    ) -> Found:
        scores, top_k = layer.router.scores(x), layer.router.moe.top_k
        count = self.per_layer[index]
        if self.ranking == "kept":
            kept = self.kept[index]
        elif self.ranking == "oracle":
            assert weights is not None
            kept = hindsight(layer, x, scores, weights > 0.0, count)
        else:
            return route(
                scores,
                top_k,
                count,
                renormalise=True,
                mode=self.mode,
                node_weights=weights,
                ranking=self.ranking,
            )
        return route_within(scores, top_k, kept, renormalise=True, mode=self.mode)


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
) -> Budget | None:
    """The budget that a request names; None where it names none.

    Raises:
        Refusal: no layer could keep it.
    """
    if ask["per_layer"] is None:
        return None
    try:
        for count in ask["per_layer"]:
            check(top_k, count, experts, ask["mode"])
    except ConfigError as error:
        raise Refusal("world", str(error)) from error
    fixed = (torch.tensor(sorted(layer), device=device) for layer in ask["kept"] or ())
    return Budget(
        tuple(ask["per_layer"]),
        ask["mode"],
        ask["ranking"],
        ask["exponent"],
        tuple(fixed),
    )
