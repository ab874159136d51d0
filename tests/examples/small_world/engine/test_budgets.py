"""Under a budget no layer activates more experts; one of all changes nothing."""

import pytest
import torch

from evict_profile.runtime.budget import route
from examples.small_world.engine.budgets import RULES, ExpertBudget
from examples.small_world.engine.verifier import own_routing
from tests.examples.small_world.engine.decoding import (
    EXPERTS,
    TOP_K,
    fixed,
)

WHOLE = fixed(4, 15)


class Spy(ExpertBudget):
    """Routes as the model does, and notes how much tokens counted."""

    def routing(self, weights):
        self.weighed = weights
        return own_routing


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_no_layer_activates_more_than_its_budget(under, rule):
    """In any step; and all that it may, at times."""
    engine, activated = under(ExpertBudget(3, **rule)).start(2), []
    for _ in range(4):
        routes = engine.step(WHOLE).verified.routes
        activated += [len(own.unique()) for own in routes]
        assert (routes[..., 0] != routes[..., 1]).all()
    assert max(activated) == 3


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_budget_of_all_experts_is_none(under, rule):
    budget = ExpertBudget(EXPERTS, **rule)
    assert under(budget).replies(WHOLE, 2) == under(None).replies(WHOLE, 2)


def test_prompts_have_no_budget(under):
    plain, budgeted = under(None).start(2), under(ExpertBudget(2)).start(2)
    for mine, theirs in zip(budgeted.requests, plain.requests, strict=True):
        assert mine.reply == theirs.reply
        assert all(map(torch.equal, mine.pending[0], theirs.pending[0]))


def test_a_token_counts_as_a_power_of_its_path_probability(under):
    """Roots count 1, requests stand end to end; of power 0 none is weighed."""
    plain = Spy(3)
    under(plain).start(1).step(WHOLE)
    assert plain.weighed is None
    spy = Spy(3, "top-k", 0.5)
    step = under(spy).start(2).step(WHOLE)
    chances = [p for t in step.trees for p in (1.0, *t.path_prob[0].tolist())]
    torch.testing.assert_close(spy.weighed, torch.tensor(chances).sqrt())


@pytest.mark.parametrize("ranking", ["mass", "top-k"])
@pytest.mark.parametrize("index", [0, 1])
def test_a_server_would_route_alike(layer, x, ranking, index):
    """What the engine measures is what servers run, and what it takes is added up."""
    weights, budget = torch.arange(12) / 12, ExpertBudget(5, ranking)
    ids, shares = budget.routing(weights)(index, layer, x)
    scores = layer.router.scores(x)
    more = {"renormalise": True, "node_weights": weights, "ranking": ranking}
    found = route(scores, TOP_K, 5, **more)
    assert torch.equal(ids, found.topk_ids)
    assert torch.equal(shares, found.topk_weights)
    assert budget.added_us != 0.0
