"""Expert budgets in the engine: which experts a verification may activate.

A budget stands between the router and the experts of each layer, and routes as servers
do, by `runtime.budget.route`. Prompts run without one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from evict_profile.runtime.budget import Ranking, holds_all, route
from examples.small_world.engine.engine import Engine
from examples.small_world.engine.tree import Trees
from examples.small_world.engine.verifier import Routing, Verified
from runners.clock import now
from runners.torch_moe.model import MoeLayer

NONE, MASS, SQRT_TOP_K = "none", "mass", "sqrt-path+top-k"
RULES: dict[str, dict[str, Any]] = {
    MASS: {"ranking": "mass", "exponent": 0.0},
    SQRT_TOP_K: {"ranking": "top-k", "exponent": 0.5},
}
"""How experts are ranked: by MoE-Spec (arXiv 2602.16052); as a server ranks them, by
what tokens would run, weighed by the root of their path probability."""


@dataclass
class ExpertBudget:
    """Experts that a layer may activate in a verification; a budget hook of the engine.

    Each token counts as its path probability to the power `exponent`. `added_us` is
    what the routing took beyond the model's own, in all so far.
    """

    budget: int
    ranking: Ranking = "mass"
    exponent: float = 0.0
    added_us: float = 0.0

    def __call__(
        self, engine: Engine, trees: Sequence[Trees], rerun: Callable[[], Verified]
    ) -> Routing:
        if not self.exponent:
            return self.routing(None)
        chances = [p for t in trees for p in (1.0, *t.path_prob[0].tolist())]
        weights = torch.tensor(chances, device=engine.device) ** self.exponent
        return self.routing(weights)

    def routing(self, weights: Tensor | None) -> Routing:
        """Where each token counts so much, [T]; None counts all alike."""
        return partial(self._timed, weights)

    def _timed(
        self, weights: Tensor | None, index: int, layer: MoeLayer, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Route in place, since a router that runs again and again is warm, as none is
        between the experts of two layers; the model's own is first in every other."""
        within = partial(self.route, weights, index, layer)
        us, found = {}, {}
        for routing in (layer.router, within) if index % 2 else (within, layer.router):
            begun = now(x.device)
            found[routing] = routing(x)
            us[routing] = (now(x.device) - begun).us
        self.added_us += us[within] - us[layer.router]
        return found[within]

    def of_layer(self, index: int) -> int:
        """Experts that this layer may activate."""
        return self.budget

    def route(
        self, weights: Tensor | None, index: int, layer: MoeLayer, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        moe, budget = layer.router.moe, self.of_layer(index)
        if holds_all(len(x), moe.top_k, budget, moe.num_experts):
            return layer.router(x)
        found = route(
            layer.router.scores(x),
            moe.top_k,
            budget,
            renormalise=True,
            node_weights=weights,
            ranking=self.ranking,
        )
        return found.topk_ids, found.topk_weights.to(x.dtype)
