"""Under a budget no layer activates more experts; one of all changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from evict_profile.runtime.budget import (
    MODES,
    Mode,
    expert_mass,
    kept_experts,
    route,
)
from evict_profile.runtime.budget import Ranking as ServedRanking
from runners.protocol import Refusal
from runners.torch_moe.model import MoeLayer
from runners.tree_decoding.budgets import (
    Budget,
    Ranking,
    every_output,
    hindsight,
    make_budget,
    mix,
)
from runners.tree_decoding.checkpoint import Checkpoint
from runners.tree_decoding.engine import Engine
from runners.tree_decoding.policy import Always
from runners.tree_decoding.tree import TreeShape
from runners.tree_decoding.verifier import Routing, Verifier
from tests.runners.tree_decoding.decoding import CPU, Decoder

EXPERTS, TOP_K, LAYERS, HIDDEN = 8, 2, 3, 32
WHOLE = Always(4, 15)
SOME = (2, 5, 3)
"""Experts that each layer may activate."""
KEPT = (torch.tensor([1, 6]), torch.tensor([0, 2, 3, 4, 7]), torch.tensor([2, 5, 6]))
RULES = {
    "mass": Budget(SOME),
    "truncation": Budget(SOME, "truncation"),
    "path": Budget(SOME, exponent=1.0),
    "top-k": Budget(SOME, ranking="top-k"),
    "sqrt-path+top-k": Budget(SOME, ranking="top-k", exponent=0.5),
    "static": Budget(SOME, ranking="kept", kept=KEPT),
    "oracle": Budget(SOME, ranking="oracle"),
}

Under = Callable[[object], Decoder]


@pytest.fixture
def under(world: Checkpoint, tree: TreeShape) -> Under:
    """Decoders of the random world, each under a budget."""

    def decoder(budget: object) -> Decoder:
        return Decoder(world, lambda slots: Engine(world, slots, 96, tree, CPU, budget))

    return decoder


@pytest.fixture(scope="module")
def layers(world: Checkpoint) -> list[MoeLayer]:
    """Those of the random world."""
    return Verifier(world.target, 1, 1, CPU).stack.moe


@pytest.fixture
def layer(layers: list[MoeLayer]) -> MoeLayer:
    """One of them."""
    return layers[1]


@pytest.fixture
def x() -> Tensor:
    """What enters a router, twelve tokens."""
    return torch.randn(12, HIDDEN, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def accepted() -> Tensor:
    """Three of them are."""
    return torch.arange(12) % 4 == 0


class Spy(Budget):
    """Routes as the model does, and notes how much tokens counted."""

    def routing(self, weights: Tensor | None) -> Routing:
        """The model's own."""
        object.__setattr__(self, "weighed", weights)
        return lambda index, layer, x: layer.router(x)


def spy_on(ranking: Ranking, exponent: float) -> Any:
    """A spy under a ranking; `weighed` is what its tokens counted."""
    return Spy(SOME, ranking=ranking, exponent=exponent)


@pytest.mark.parametrize("budget", RULES.values(), ids=RULES)
def test_no_layer_wakes_more_than_its_budget(under: Under, budget: Budget) -> None:
    """In any step, with budgets that differ by layer; and all that it may, at times."""
    engine, activated = under(budget).start(2), []
    for _ in range(4):
        routes = engine.step(WHOLE).routes
        activated.append([len(own.unique()) for own in routes])
        assert (routes[..., 0] != routes[..., 1]).all()
    assert tuple(map(max, zip(*activated, strict=True))) == SOME


@pytest.mark.parametrize(
    "budget",
    [
        Budget((EXPERTS,) * LAYERS),
        Budget((EXPERTS,) * LAYERS, "truncation"),
        Budget((EXPERTS,) * LAYERS, ranking="top-k", exponent=0.5),
        Budget((EXPERTS,) * LAYERS, ranking="oracle"),
        Budget(
            (EXPERTS,) * LAYERS, ranking="kept", kept=(torch.arange(EXPERTS),) * LAYERS
        ),
    ],
    ids=["mass", "truncation", "sqrt-path+top-k", "oracle", "static"],
)
def test_a_budget_of_all_experts_is_none(under: Under, budget: Budget) -> None:
    """Token for token."""
    assert under(budget).replies(WHOLE, 2) == under(None).replies(WHOLE, 2)


def test_prompts_have_no_budget(under: Under) -> None:
    """Their tokens are read once, and activate what they will."""
    plain, budgeted = under(None).start(2), under(RULES["mass"]).start(2)
    for mine, theirs in zip(budgeted.requests, plain.requests, strict=True):
        assert mine.reply == theirs.reply
        assert all(map(torch.equal, mine.pending[0], theirs.pending[0]))


def test_what_is_kept_beforehand_and_nothing_else_runs(
    layers: list[MoeLayer], x: Tensor
) -> None:
    """Each token's best of them."""
    routing = RULES["static"].routing(None)
    for index, (layer, kept) in enumerate(zip(layers, KEPT, strict=True)):
        ids, weights = routing(index, layer, x)
        best = layer.router.scores(x)[:, kept].topk(TOP_K)
        assert torch.equal(ids, kept[best.indices])
        torch.testing.assert_close(weights, best.values / best.values.sum(1, True))


def test_a_truncated_expert_has_no_weight(layer: MoeLayer, x: Tensor) -> None:
    """And a token that lost none keeps its own."""
    ids, weights = RULES["truncation"].routing(None)(0, layer, x)
    natural, own = layer.router(x)
    mass = kept_experts(expert_mass(layer.router.scores(x)), SOME[0])
    lost = (~torch.isin(natural, mass)).sum(dim=1)
    assert torch.equal((weights == 0.0).sum(dim=1), lost)
    assert torch.equal(ids[lost == 0], natural[lost == 0])
    torch.testing.assert_close(weights[lost == 0], own[lost == 0])


@pytest.mark.parametrize("ranking", ["mass", "top-k"])
def test_weights_of_one_are_no_weights(
    layer: MoeLayer, x: Tensor, ranking: Ranking
) -> None:
    """What an exponent of 0 would come to."""
    budget = Budget((3,), ranking=ranking)
    bare, ones = (budget.routing(w)(0, layer, x) for w in (None, torch.ones(12)))
    assert all(map(torch.equal, bare, ones))


def test_a_token_without_weight_buys_no_expert(layer: MoeLayer, x: Tensor) -> None:
    """Where one token alone counts, its experts are kept."""
    for token, own in enumerate(layer.router(x)[0].tolist()):
        weights = torch.zeros(12)
        weights[token] = 0.5
        ids, _ = Budget((TOP_K,), exponent=1.0).routing(weights)(0, layer, x)
        assert ids.unique().tolist() == sorted(own)


def test_an_exponent_of_nought_takes_no_weights(under: Under) -> None:
    """So that the ranking is MoE-Spec's own."""
    spy = spy_on("mass", 0.0)
    under(spy).start(1).step(WHOLE)
    assert spy.weighed is None


def test_a_token_counts_as_a_power_of_its_path_probability(under: Under) -> None:
    """Roots count 1; requests stand end to end."""
    spy = spy_on("top-k", 0.5)
    step = under(spy).start(2).step(WHOLE)
    chances = [p for t in step.trees for p in (1.0, *t.path_prob[0].tolist())]
    assert spy.weighed is not None
    torch.testing.assert_close(spy.weighed, torch.tensor(chances).sqrt())


def test_the_oracle_is_told_what_the_target_accepts(under: Under) -> None:
    """Without a budget: here it routes as the model does, and accepts the same."""
    spy = spy_on("oracle", 0.0)
    engine = under(spy).start(2)
    for _ in range(3):
        step = engine.step(WHOLE)
        assert spy.weighed is not None
        for own, path in zip(spy.weighed.split(15), step.paths, strict=True):
            assert own.nonzero().flatten().tolist() == [0, *(n + 1 for n in path)]
            assert own.max() == 1.0


@pytest.mark.parametrize("ranking", ["mass", "top-k"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [TOP_K, 5])
def test_a_server_would_route_alike(
    layer: MoeLayer, x: Tensor, ranking: ServedRanking, mode: Mode, count: int
) -> None:
    """What the engine measures is what servers run."""
    weights = torch.arange(12) / 12
    budget = Budget((count,), mode, ranking, exponent=0.5)
    ids, shares = budget.routing(weights)(0, layer, x)
    found = route(
        layer.router.scores(x),
        TOP_K,
        count,
        renormalise=True,
        mode=mode,
        node_weights=weights,
        ranking=ranking,
    )
    assert torch.equal(ids, found.topk_ids)
    assert torch.equal(shares, found.topk_weights)


@pytest.mark.parametrize("ranking", ["mass", "top-k"])
def test_tokens_that_lose_nothing_keep_their_own_router(
    layer: MoeLayer, x: Tensor, ranking: Ranking
) -> None:
    """As it is: few of them, or room for all experts."""
    for count, tokens in ((2 * TOP_K, 2), (EXPERTS, 12)):
        routing = Budget((count,), ranking=ranking).routing(None)
        for mine, own in zip(
            routing(0, layer, x[:tokens]), layer.router(x[:tokens]), strict=True
        ):
            assert torch.equal(mine, own)


def test_ranked_by_top_k_no_expert_is_kept_that_nobody_runs(
    layer: MoeLayer, x: Tensor
) -> None:
    """With room for the natural union all tokens run what they would."""
    few = x[:3]
    natural, own = layer.router(few)
    room = len(natural.unique())
    assert room < EXPERTS
    ids, weights = Budget((room,), ranking="top-k").routing(None)(0, layer, few)
    assert torch.equal(ids, natural)
    torch.testing.assert_close(weights, own)


def error_of(layer: MoeLayer, x: Tensor, accepted: Tensor, kept: Tensor) -> float:
    """Squared error of the accepted tokens' outputs, in a loop over tokens."""
    total = 0.0
    for own, scores in zip(x[accepted], layer.router.scores(x[accepted]), strict=True):
        outputs = torch.stack([alone(layer, own, e) for e in range(EXPERTS)])
        natural = scores.topk(TOP_K)
        best = scores[kept].topk(min(TOP_K, len(kept)))
        wanted = natural.values / natural.values.sum() @ outputs[natural.indices]
        found = best.values / best.values.sum() @ outputs[kept[best.indices]]
        total += (found - wanted).square().sum().item()
    return total


def alone(layer: MoeLayer, x: Tensor, expert: int) -> Tensor:
    """One expert's output for one token."""
    gate, up = (layer.experts.gate_up[expert] @ x).chunk(2)
    return layer.experts.down[expert] @ (F.silu(gate) * up)


def test_every_output_is_what_each_expert_makes(layer: MoeLayer, x: Tensor) -> None:
    """Expert by expert, token by token."""
    found = every_output(layer.experts, x)
    assert found.shape == (12, EXPERTS, HIDDEN)
    for expert in range(EXPERTS):
        one_by_one = torch.stack([alone(layer, row, expert) for row in x])
        torch.testing.assert_close(found[:, expert], one_by_one)


def test_a_mix_is_of_each_token_s_best_that_is_kept(layer: MoeLayer, x: Tensor) -> None:
    """One choice after the other; where fewer than k are kept, of those."""
    scores, outputs = layer.router.scores(x), every_output(layer.experts, x)
    choices = [[4], [1, 6], [0, 2, 3, 7], list(range(EXPERTS))]
    kept = torch.stack(
        [torch.zeros(EXPERTS).index_fill(0, torch.tensor(c), 1.0) for c in choices]
    )
    found = mix(scores, outputs, kept, TOP_K)
    for own, choice in zip(found, choices, strict=True):
        for token, row in enumerate(own):
            best = sorted(choice, key=lambda e: -scores[token, e].item())[:TOP_K]
            whole = scores[token, best].sum()
            plain = sum(scores[token, e] / whole * outputs[token, e] for e in best)
            torch.testing.assert_close(row, plain)


def test_with_room_for_them_hindsight_leaves_accepted_tokens_exact(
    layer: MoeLayer, x: Tensor, accepted: Tensor
) -> None:
    """All experts that they run are kept."""
    scores = layer.router.scores(x)
    natural = scores[accepted].topk(TOP_K).indices.unique()
    for budget in range(len(natural), EXPERTS + 1):
        kept = hindsight(layer, x, scores, accepted, budget)
        assert torch.isin(natural, kept).all()
        assert error_of(layer, x, accepted, kept) < 1e-9


def test_the_oracle_s_routes_are_made_for_accepted_tokens(
    layer: MoeLayer, x: Tensor, accepted: Tensor
) -> None:
    """With room for what they run they run it; the others take what is there."""
    natural, _ = layer.router(x)
    room = len(natural[accepted].unique())
    assert room < len(natural.unique())
    routing = Budget((room,), ranking="oracle").routing(accepted.float())
    ids, _ = routing(0, layer, x)
    assert torch.equal(ids[accepted], natural[accepted])
    assert len(ids.unique()) == room


def test_hindsight_takes_no_expert_twice(layer: MoeLayer, x: Tensor) -> None:
    """Where all choices are as good, here where accepted tokens are nought."""
    scores = torch.full((12, EXPERTS), 0.01)
    scores[0, [3, 5]] = 0.4
    scores[1:, [6, 7]] = 0.45
    first = torch.arange(12) == 0
    assert hindsight(layer, 0.0 * x, scores, first, 2).tolist() == [3, 5]


def test_what_hindsight_leaves_over_goes_by_mass(
    layer: MoeLayer, x: Tensor, accepted: Tensor
) -> None:
    """Of all tokens, as in other rankings."""
    scores = layer.router.scores(x)
    natural = scores[accepted].topk(TOP_K).indices.unique()
    assert len(natural) < EXPERTS - 1
    kept = hindsight(layer, x, scores, accepted, len(natural) + 1)
    mass = expert_mass(scores)
    mass[natural] = 0.0
    (more,) = set(kept.tolist()) - set(natural.tolist())
    assert more == mass.argmax().item()


def test_hindsight_adds_the_best_expert_one_by_one(
    layer: MoeLayer, x: Tensor, accepted: Tensor
) -> None:
    """Each by trying all that accepted tokens run."""
    scores = layer.router.scores(x)
    natural = scores[accepted].topk(TOP_K).indices.unique().tolist()
    chosen: list[int] = []
    for budget in range(1, len(natural)):
        chosen.append(
            min(
                (each for each in natural if each not in chosen),
                key=lambda e: error_of(layer, x, accepted, torch.tensor([*chosen, e])),
            )
        )
        kept = hindsight(layer, x, scores, accepted, budget)
        assert kept.tolist() == sorted(chosen)


def test_hindsight_is_far_less_off_than_mass_is(
    layers: list[MoeLayer], accepted: Tensor
) -> None:
    """All in all: greedy, it may be further off in one layer of fifty."""
    generator, off = torch.Generator().manual_seed(0), torch.zeros(2)
    for layer in layers * 5:
        x = torch.randn(12, HIDDEN, generator=generator)
        scores = layer.router.scores(x)
        for place, kept in enumerate(
            (
                hindsight(layer, x, scores, accepted, 3),
                kept_experts(expert_mass(scores), 3),
            )
        ):
            off[place] += error_of(layer, x, accepted, kept)
    assert off[0] < 0.7 * off[1]


def test_a_token_that_wants_nothing_of_what_is_kept_gets_nothing(
    layer: MoeLayer, x: Tensor
) -> None:
    """Where a router is so sure that all else is 0, as `route_within` has it; a NaN
    would be taken for the least error."""
    scores = torch.zeros(12, EXPERTS)
    scores[:, [5, 6]] = torch.tensor([0.5, 0.5])
    kept = F.one_hot(torch.tensor([2]), EXPERTS).float()
    found = mix(scores, every_output(layer.experts, x), kept, TOP_K)
    assert (found == 0.0).all()


def ask(**changed: object) -> dict[str, object]:
    """A request that names a budget."""
    return {
        "per_layer": [3, 2, 8],
        "mode": "substitution",
        "ranking": "mass",
        "exponent": 0.0,
        "kept": None,
        **changed,
    }


def test_a_request_may_name_no_budget() -> None:
    """Then nothing stands between routers and experts."""
    assert make_budget(ask(per_layer=None), TOP_K, EXPERTS, CPU) is None


def test_a_budget_is_as_the_request_names_it() -> None:
    """With what is kept in order, as all rankings have it."""
    found = make_budget(
        ask(ranking="kept", kept=[[7, 0, 3], [1, 0], list(range(8))]),
        TOP_K,
        EXPERTS,
        CPU,
    )
    assert found is not None
    assert found.per_layer == (3, 2, 8)
    assert [own.tolist() for own in found.kept] == [[0, 3, 7], [0, 1], list(range(8))]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"per_layer": [3, 1, 8]}, "budget of 1 cannot be kept .* choose one from 2"),
        ({"per_layer": [3, 9, 8]}, "budget of 9 cannot be kept .* from 2 to 8"),
        ({"mode": "hope"}, "unknown mode 'hope'"),
    ],
)
def test_a_budget_that_no_layer_can_keep_is_refused(
    changed: dict[str, object], sentence: str
) -> None:
    """As an answer, so that the runner goes on."""
    with pytest.raises(Refusal, match=sentence):
        make_budget(ask(**changed), TOP_K, EXPERTS, CPU)
