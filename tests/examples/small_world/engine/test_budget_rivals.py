"""Each rival differs from the paper's rule in what its name says."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples.small_world.engine.budget_rivals import (
    ByLayer,
    Listening,
    Oracle,
    RouterMass,
    Static,
    Truncating,
)
from examples.small_world.engine.budgets import ExpertBudget
from examples.small_world.engine.verifier import own_routing
from tests.examples.small_world.engine.decoding import (
    EXPERTS,
    LAYERS,
    fixed,
)

WHOLE = fixed(4, 15)


def dense(ids, shares):
    """Weights by expert, [T, E]."""
    return torch.zeros(len(ids), EXPERTS).scatter_add_(1, ids, shares)


def test_truncation_runs_what_a_token_wants_of_what_is_kept(layer, x):
    own_ids, own = layer.router(x)
    kept = ExpertBudget(4).route(None, 1, layer, x)[0].unique()
    ids, shares = Truncating(4).route(None, 1, layer, x)
    wanted = dense(own_ids, own) * torch.isin(torch.arange(EXPERTS), kept)
    total = wanted.sum(dim=1, keepdim=True)
    torch.testing.assert_close(dense(ids, shares) * total, wanted)
    assert torch.isin(ids, kept).all()


def test_a_static_choice_is_the_same_for_all_tokens(under):
    kept = torch.zeros(LAYERS, EXPERTS, dtype=torch.bool)
    kept[:, [1, 4, 6]] = True
    engine = under(Static(3, kept=kept)).start(2)
    for _ in range(3):
        routes = engine.step(WHOLE).verified.routes
        assert set(routes.unique().tolist()) <= {1, 4, 6}


def test_layers_keep_to_their_own_budgets(under):
    step = under(ByLayer(4, budgets=(2, 4, 6))).start(2).step(WHOLE)
    activated = [len(own.unique()) for own in step.verified.routes]
    assert all(map(int.__le__, activated, (2, 4, 6)))
    assert activated[:2] == [2, 4]


curves = st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4).map(
    lambda values: sorted(values, reverse=True)
)


@given(st.lists(curves, min_size=3, max_size=3), st.integers(1, 4))
def test_budgets_by_layer_lose_the_least_mass(by_rank, budget):
    """Of all budgets with the same sum; each layer keeps what one token runs."""
    ranked = torch.tensor(by_rank, dtype=torch.float64)
    chosen = RouterMass(ranked, ranked).shared_out(budget, top_k=1)
    kept = {
        each: sum(ranked[i, :count].sum().item() for i, count in enumerate(each))
        for each in product(range(1, 5), repeat=3)
        if sum(each) == 3 * budget
    }
    assert kept[chosen] == pytest.approx(max(kept.values()))


def test_mass_is_what_routers_gave_in_all(under):
    listening = Listening()
    engine = under(listening).start(1)
    steps = [engine.step(WHOLE) for _ in range(2)]
    mass = listening.mass
    tokens = sum(step.verified.routes.shape[1] for step in steps) / len(steps)
    torch.testing.assert_close(mass.by_expert.sum(dim=1), torch.full((3,), tokens))
    assert (mass.by_rank.diff(dim=1) <= 0.0).all()
    largest = mass.by_expert.max(dim=1).indices
    assert mass.largest(1)[torch.arange(LAYERS), largest].all()


class Weighed(Oracle):
    """Routes as the model does, and notes how much tokens counted."""

    def routing(self, weights):
        self.weights = weights
        return own_routing


def test_the_oracle_counts_what_will_be_accepted(under):
    """As the model without a budget accepts it: the root, and the accepted path."""
    oracle, accepted = Weighed(4, "top-k"), 0
    engine = under(oracle).start(1)
    for _ in range(4):
        step = engine.step(WHOLE)
        [path] = step.paths
        assert oracle.weights.nonzero().flatten().tolist() == [
            0,
            *(n + 1 for n in path),
        ]
        accepted += len(path)
    assert accepted
