"""Expert budgets to compare with: MoE-Spec's other modes, and two yardsticks.

Each differs from the paper's rule (`mass`) in one thing. `static` and `layers` rest on
router probabilities of other held-out text; `oracle` verifies each tree once more and
so knows which tokens will be accepted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from evict_profile.replay.policies import full_tree
from examples.small_world.engine.accept import greedy
from examples.small_world.engine.budgets import RULES, ExpertBudget
from examples.small_world.engine.engine import Engine, accepted_paths
from examples.small_world.engine.session import TraceSession
from examples.small_world.engine.tree import Trees
from examples.small_world.engine.verifier import Routing, Verified
from runners.torch_moe.model import MoeLayer

TRUNCATION, STATIC, LAYERS, ORACLE = "truncation", "static", "layers", "oracle"
RIVALS = (TRUNCATION, STATIC, LAYERS, ORACLE)
OTHER_TEXTS, OTHER_TOKENS = 4, 32
"""Texts of each workload, and tokens decoded behind each, whose routers are read."""


@dataclass(frozen=True)
class RouterMass:
    """Router probabilities of the trees of other text, summed over their tokens.

    Attributes:
        by_expert: mean over trees, [layers, E].
        by_rank: mean over trees of the sums in descending order, [layers, E].
    """

    by_expert: Tensor
    by_rank: Tensor

    def largest(self, budget: int) -> Tensor:
        """The experts of each layer that have most, bool [layers, E]."""
        best = self.by_expert.topk(budget, dim=1).indices
        return torch.zeros_like(self.by_expert, dtype=torch.bool).scatter_(
            1, best, True
        )

    def shared_out(self, budget: int, top_k: int) -> tuple[int, ...]:
        """Budgets by layer with this mean that lose the least probability in all.

        What the next expert of a layer adds falls with each, so the largest additions
        of all layers are the best choice.
        """
        beyond = self.by_rank[:, top_k:]
        chosen = beyond.flatten().topk((budget - top_k) * len(beyond)).indices
        layers = chosen // beyond.shape[1]
        counts = top_k + torch.bincount(layers, minlength=len(beyond))
        return tuple(counts.tolist())


@dataclass
class Listening:
    """Routes as the model does, and keeps each layer's summed probabilities."""

    seen: dict[int, list[Tensor]] = field(default_factory=dict)

    def __call__(
        self, engine: Engine, trees: Sequence[Trees], rerun: Callable[[], Verified]
    ) -> Routing:
        return self.listen

    def listen(self, index: int, layer: MoeLayer, x: Tensor) -> tuple[Tensor, Tensor]:
        mass = layer.router.scores(x).float().sum(dim=0)
        self.seen.setdefault(index, []).append(mass)
        return layer.router(x)

    @property
    def mass(self) -> RouterMass:
        sums = torch.stack([torch.stack(self.seen[i]) for i in sorted(self.seen)])
        ranked = sums.sort(dim=2, descending=True).values
        return RouterMass(sums.mean(dim=1), ranked.mean(dim=1))


@lru_cache(maxsize=1)
def mass_of_other_text(session: TraceSession) -> RouterMass:
    """Of trees behind texts at odd sixteenths of each workload.

    Prompts of a recording are spaced evenly from end to end, and eight of them are far
    from these texts.
    """
    found, tree = Listening(), session.tree
    for stream in session.held_out.streams.values():
        gap = len(stream) // (2 * OTHER_TEXTS)
        for text in range(OTHER_TEXTS):
            at = gap // 2 + 2 * gap * text
            engine = session.engine(1, OTHER_TOKENS, found)
            engine.admit(stream[at : at + session.prompt_tokens].tolist(), greedy, 0)
            while len(engine.requests[0].reply) <= OTHER_TOKENS:
                engine.step(full_tree(tree.nodes, tree.depth))
    return found.mass


@dataclass
class Truncating(ExpertBudget):
    """A token that loses an expert gets none in its place."""

    def route(
        self, weights: Tensor | None, index: int, layer: MoeLayer, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        own, _ = layer.router(x)
        ids, shares = super().route(weights, index, layer, x)
        kept = (ids[:, :, None] == own[:, None, :]).any(dim=2)
        shares = shares * kept
        least = torch.finfo(shares.dtype).tiny
        shares = shares / shares.sum(dim=1, keepdim=True).clamp_(min=least)
        # What weighs nothing must not run, and a kept expert runs at most once more.
        return ids.where(kept, ids[:, :1]), shares


@dataclass
class Static(ExpertBudget):
    """The same experts in every step."""

    kept: Tensor = field(default_factory=lambda: torch.empty(0))

    def route(
        self, weights: Tensor | None, index: int, layer: MoeLayer, x: Tensor
    ) -> tuple[Tensor, Tensor]:
        among = layer.router.scores(x).float() * self.kept[index]
        shares, ids = among.topk(layer.router.moe.top_k, dim=1)
        return ids, (shares / shares.sum(dim=1, keepdim=True)).to(x.dtype)


@dataclass
class ByLayer(ExpertBudget):
    """Budgets that differ by layer; `budget` is their mean."""

    budgets: tuple[int, ...] = ()

    def of_layer(self, index: int) -> int:
        return self.budgets[index]


@dataclass
class Oracle(ExpertBudget):
    """Only what will be accepted without a budget counts: its experts come first."""

    def __call__(
        self, engine: Engine, trees: Sequence[Trees], rerun: Callable[[], Verified]
    ) -> Routing:
        paths = accepted_paths(trees, engine.wanted(trees, rerun()))
        weights = [
            torch.zeros(1 + tree.token.shape[1], device=engine.device) for tree in trees
        ]
        for own, path in zip(weights, paths, strict=True):
            own[[0, *(node + 1 for node in path)]] = 1.0
        return self.routing(torch.cat(weights))


def make_budget(rule: str, budget: int, session: TraceSession) -> ExpertBudget:
    if rule in RULES:
        return ExpertBudget(budget, **RULES[rule])
    if rule == TRUNCATION:
        return Truncating(budget)
    if rule == ORACLE:
        return Oracle(budget, "top-k")
    mass = mass_of_other_text(session)
    if rule == STATIC:
        return Static(budget, kept=mass.largest(budget))
    top_k = session.checkpoint.shape.top_k
    return ByLayer(budget, budgets=mass.shared_out(budget, top_k))
