"""Under a budget no layer activates more experts; one of all changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from evict_profile.runtime.budget import MODES, expert_mass, route
from runners.protocol import Refusal
from runners.tree_decoding.budgets import (
    ExpertBudget,
    every_output,
    hindsight,
    make_budget,
    mix,
)
from runners.tree_decoding.engine import BudgetHook, Engine
from runners.tree_decoding.verifier import Verifier, own_routing
from tests.runners.tree_decoding.decoding import (
    CPU,
    EXPERTS,
    HIDDEN,
    LAYERS,
    NO_BUDGET,
    TOP_K,
    Decoder,
    fixed,
)

WHOLE = fixed(4, 15)
SOME = (2, 5, 3)
"""Experts that each layer may activate."""
KEPT = (torch.tensor([1, 6]), torch.tensor([0, 2, 3, 4, 7]), torch.tensor([2, 5, 6]))
RULES: dict[str, dict[str, Any]] = {
    "mass": {},
    "truncation": {"mode": "truncation"},
    "path": {"exponent": 1.0},
    "top-k": {"ranking": "top-k"},
    "sqrt-path+top-k": {"ranking": "top-k", "exponent": 0.5},
    "static": {"ranking": "kept", "kept": KEPT},
    "oracle": {"ranking": "oracle"},
}

Under = Callable[[BudgetHook | None], Decoder]


@pytest.fixture
def under(checkpoint, tree):
    def decoder(budget):
        return Decoder(lambda slots: Engine(checkpoint, slots, 96, tree, CPU, budget))

    return decoder


@pytest.fixture(scope="module")
def layers(checkpoint):
    return Verifier(checkpoint.target, 1, 1, CPU).stack.moe


@pytest.fixture
def layer(layers):
    return layers[1]


@pytest.fixture
def x():
    return torch.randn(12, HIDDEN, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def accepted():
    return torch.arange(12) % 4 == 0


class Spy(ExpertBudget):
    """Routes as the model does, and notes how much tokens counted."""

    def routing(self, weights):
        object.__setattr__(self, "weighed", weights)
        return own_routing


def spy_on(ranking, exponent):
    """A spy under a ranking; `weighed` is what its tokens counted."""
    return Spy(SOME, ranking=ranking, exponent=exponent)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_no_layer_activates_more_than_its_budget(under, rule):
    """In any step, with budgets that differ by layer; and all that it may, at times."""
    engine, activated = under(ExpertBudget(SOME, **rule)).start(2), []
    for _ in range(4):
        routes = engine.step(WHOLE).verified.routes
        activated.append([len(own.unique()) for own in routes])
        assert (routes[..., 0] != routes[..., 1]).all()
    assert tuple(map(max, zip(*activated, strict=True))) == SOME


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_budget_of_all_experts_is_none(under, rule):
    if "kept" in rule:
        rule = {**rule, "kept": (torch.arange(EXPERTS),) * LAYERS}
    budget = ExpertBudget((EXPERTS,) * LAYERS, **rule)
    assert under(budget).replies(WHOLE, 2) == under(None).replies(WHOLE, 2)


def test_prompts_have_no_budget(under):
    plain, budgeted = under(None).start(2), under(ExpertBudget(SOME)).start(2)
    for mine, theirs in zip(budgeted.requests, plain.requests, strict=True):
        assert mine.reply == theirs.reply
        assert all(map(torch.equal, mine.pending[0], theirs.pending[0]))


def test_what_is_kept_beforehand_and_nothing_else_runs(layers, x):
    """Each token's best of them, of one token as of many."""
    routing = ExpertBudget(SOME, ranking="kept", kept=KEPT).routing(None)
    for index, (layer, kept) in enumerate(zip(layers, KEPT, strict=True)):
        for rows in (x, x[:1]):
            ids, weights = routing(index, layer, rows)
            best = layer.router.scores(rows)[:, kept].topk(TOP_K)
            assert torch.equal(ids, kept[best.indices])
            shares = best.values / best.values.sum(1, True)
            torch.testing.assert_close(weights, shares)


def test_a_token_without_weight_buys_no_expert(layer, x):
    """Where one token alone counts, its experts are kept."""
    for token, own in enumerate(layer.router(x)[0].tolist()):
        weights = torch.zeros(12)
        weights[token] = 0.5
        ids, _ = ExpertBudget((TOP_K,), exponent=1.0).routing(weights)(0, layer, x)
        assert ids.unique().tolist() == sorted(own)


def test_a_token_counts_as_a_power_of_its_path_probability(under):
    """Roots count 1, requests stand end to end; of power 0 none is weighed."""
    plain = spy_on("mass", 0.0)
    under(plain).start(1).step(WHOLE)
    assert plain.weighed is None
    spy = spy_on("top-k", 0.5)
    step = under(spy).start(2).step(WHOLE)
    chances = [p for t in step.trees for p in (1.0, *t.path_prob[0].tolist())]
    torch.testing.assert_close(spy.weighed, torch.tensor(chances).sqrt())


def test_the_oracle_is_told_what_the_target_accepts(under):
    """Without a budget: here it routes as the model does, and accepts the same."""
    spy = spy_on("oracle", 0.0)
    engine = under(spy).start(2)
    for _ in range(3):
        step = engine.step(WHOLE)
        for own, path in zip(spy.weighed.split(15), step.paths, strict=True):
            assert own.nonzero().flatten().tolist() == [0, *(n + 1 for n in path)]
            assert own.max() == 1.0


@pytest.mark.parametrize("ranking", ["mass", "top-k"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [TOP_K, 5])
def test_a_server_would_route_alike(layer, x, ranking, mode, count):
    """What the engine measures is what servers run."""
    weights = torch.arange(12) / 12
    budget = ExpertBudget((count,), mode, ranking, exponent=0.5)
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


def error_of(layer, x, accepted, kept):
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


def alone(layer, x, expert):
    """One expert's output for one token."""
    gate, up = (layer.experts.gate_up[expert] @ x).chunk(2)
    return layer.experts.down[expert] @ (F.silu(gate) * up)


def test_a_token_that_wants_nothing_of_what_is_kept_gets_nothing(layer, x):
    """Where a router is so sure that all else is 0, as `route_within` has it; a NaN
    would be taken for the least error."""
    scores = torch.zeros(12, EXPERTS)
    scores[:, [5, 6]] = 0.5
    kept = F.one_hot(torch.tensor([2]), EXPERTS).float()
    found = mix(scores, every_output(layer.experts, x), kept, TOP_K)
    assert (found == 0.0).all()


def test_the_oracle_s_routes_are_made_for_accepted_tokens(layer, x, accepted):
    """With room for what they run they run it; the others take what is there."""
    natural, _ = layer.router(x)
    room = len(natural[accepted].unique())
    assert room < len(natural.unique())
    routing = ExpertBudget((room,), ranking="oracle").routing(accepted.float())
    ids, _ = routing(0, layer, x)
    assert torch.equal(ids[accepted], natural[accepted])
    assert len(ids.unique()) == room


def test_hindsight_takes_no_expert_twice(layer, x):
    """Where all choices are as good, here where accepted tokens are nought."""
    scores = torch.full((12, EXPERTS), 0.01)
    scores[0, [3, 5]] = 0.4
    scores[1:, [6, 7]] = 0.45
    first = torch.arange(12) == 0
    assert hindsight(layer, 0.0 * x, scores, first, 2).tolist() == [3, 5]


def test_what_hindsight_leaves_over_goes_by_mass(layer, x, accepted):
    """Of all tokens, as in other rankings."""
    scores = layer.router.scores(x)
    natural = scores[accepted].topk(TOP_K).indices.unique()
    assert len(natural) < EXPERTS - 1
    kept = hindsight(layer, x, scores, accepted, len(natural) + 1)
    mass = expert_mass(scores)
    mass[natural] = 0.0
    (more,) = set(kept.tolist()) - set(natural.tolist())
    assert more == mass.argmax().item()


def test_hindsight_adds_the_best_expert_one_by_one(layer, x, accepted):
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


ASK = {**NO_BUDGET, "per_layer": [3, 2, 8]}


def test_a_budget_is_as_the_request_names_it():
    """With what is kept in order, as all rankings have it; or it names none."""
    assert make_budget(NO_BUDGET, TOP_K, EXPERTS, CPU) is None
    kept = [[7, 0, 3], [1, 0], list(range(8))]
    found = make_budget({**ASK, "ranking": "kept", "kept": kept}, TOP_K, EXPERTS, CPU)
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
def test_a_budget_that_no_layer_can_keep_is_refused(changed, sentence):
    """As an answer, so that the runner goes on."""
    with pytest.raises(Refusal, match=sentence):
        make_budget({**ASK, **changed}, TOP_K, EXPERTS, CPU)
