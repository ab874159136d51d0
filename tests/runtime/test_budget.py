"""Expert budgets: against plain loops, and fit to be captured."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.errors import ConfigError
from evict_profile.runtime.budget import (
    MODES,
    check,
    expert_mass,
    kept_experts,
    probabilities_of,
    route,
    route_within,
)

META = torch.device("meta")
PARTS = 64
"""Probabilities are multiples of 1/64, so that sums are exact and ties are many."""


@st.composite
def layers(draw):
    """Probabilities of one layer, how many of its experts run, a budget, weights."""
    experts = draw(st.integers(1, 9))
    top_k = draw(st.integers(1, experts))
    budget = draw(st.integers(top_k, experts))
    part = st.integers(0, PARTS).map(lambda n: n / PARTS)
    row = st.lists(part, min_size=experts, max_size=experts)
    rows = draw(st.lists(row, min_size=1, max_size=6))
    weight = st.sampled_from([0.0, 0.25, 0.5, 1.0])
    weights = draw(st.none() | st.lists(weight, min_size=len(rows), max_size=len(rows)))
    return rows, top_k, budget, weights


def ranked(values, among):
    """Indices by falling value; of equals the lower first."""
    return sorted(among, key=lambda i: (-values[i], i))


def mass_of(rows, weights):
    """Sums over tokens, as a loop has them."""
    weights = weights or [1.0] * len(rows)
    return [
        sum(w * row[e] for w, row in zip(weights, rows, strict=True))
        for e in range(len(rows[0]))
    ]


def by_loops(rows, top_k, budget, weights, mode):
    """The routes of each token as [(expert, probability)], of those it runs."""
    experts = range(len(rows[0]))
    kept = set(ranked(mass_of(rows, weights), experts)[:budget])
    routes = []
    for row in rows:
        among = kept if mode == "substitution" else experts
        run = [e for e in ranked(row, among)[:top_k] if e in kept]
        routes.append([(e, row[e]) for e in run])
    return routes


def routed(layer, mode, renormalise=False):
    """What `route` makes of it."""
    rows, top_k, budget, weights = layer
    node_weights = None if weights is None else torch.tensor(weights)
    return route(
        torch.tensor(rows),
        top_k,
        budget,
        renormalise=renormalise,
        mode=mode,
        node_weights=node_weights,
    )


@given(layers())
def test_substitution_equals_plain_loops(layer):
    """Ids and probabilities, ties included."""
    weights, ids = routed(layer, "substitution")
    for token, run in enumerate(by_loops(*layer, "substitution")):
        assert ids[token].tolist() == [expert for expert, _ in run]
        assert weights[token].tolist() == [p for _, p in run]


@given(layers())
def test_truncation_equals_plain_loops(layer):
    """What runs keeps its place among equals; the rest has weight 0."""
    weights, ids = routed(layer, "truncation")
    for token, run in enumerate(by_loops(*layer, "truncation")):
        got = zip(ids[token].tolist(), weights[token].tolist(), strict=True)
        assert [pair for pair in got if pair[1] > 0] == [p for p in run if p[1] > 0]


@given(layers())
def test_truncation_wakes_nothing_for_a_weight_of_zero(layer):
    """Unless fewer experts run in all than a token must name."""
    run = {e for token in by_loops(*layer, "truncation") for e, _ in token}
    named = set(routed(layer, "truncation").topk_ids.ravel().tolist())
    assert run <= named
    assert len(named) == max(len(run), layer[1])


@pytest.mark.parametrize("mode", MODES)
@given(layer=layers())
def test_a_token_names_no_expert_twice(layer, mode):
    """SGLang's native kernel counts on it."""
    for ids in routed(layer, mode).topk_ids:
        assert ids.unique().numel() == layer[1]


@pytest.mark.parametrize("mode", MODES)
@given(layer=layers())
def test_the_union_never_exceeds_the_budget(layer, mode):
    """Weights of 0 and rows without a say included."""
    assert routed(layer, mode).topk_ids.unique().numel() <= layer[2]


@pytest.mark.parametrize("mode", MODES)
@given(layer=layers())
def test_a_budget_of_all_experts_changes_nothing(layer, mode):
    """Both modes are then the natural top k."""
    rows, top_k, _, weights = layer
    got = routed((rows, top_k, len(rows[0]), weights), mode)
    natural = [ranked(row, range(len(row)))[:top_k] for row in rows]
    assert got.topk_ids.tolist() == natural
    expected = [[row[e] for e in ids] for row, ids in zip(rows, natural, strict=True)]
    assert got.topk_weights.tolist() == expected


@pytest.mark.parametrize("mode", MODES)
@given(layer=layers())
def test_renormalised_weights_add_up_to_one(layer, mode):
    """Over what is run; a token that runs nothing keeps zeros."""
    raw = routed(layer, mode).topk_weights
    sums = routed(layer, mode, renormalise=True).topk_weights.sum(dim=1)
    torch.testing.assert_close(sums, (raw.sum(dim=1) > 0).float())


@given(layers())
def test_of_equal_mass_the_lower_index_is_kept(layer):
    """In order of index, as plain loops rank."""
    rows, _, budget, weights = layer
    mass = mass_of(rows, weights)
    kept = kept_experts(torch.tensor(mass), budget)
    assert kept.tolist() == sorted(ranked(mass, range(len(mass)))[:budget])


@pytest.mark.parametrize("mode", MODES)
@given(layer=layers())
def test_routing_is_open_to_another_ranking(layer, mode):
    """What is kept may come in any order; by mass it is what `route` does."""
    rows, top_k, budget, weights = layer
    kept = kept_experts(torch.tensor(mass_of(rows, weights)), budget).flip(0)
    got = route_within(torch.tensor(rows), top_k, kept, renormalise=False, mode=mode)
    expected = routed(layer, mode)
    assert torch.equal(got.topk_ids, expected.topk_ids)
    assert torch.equal(got.topk_weights, expected.topk_weights)


@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e-42])
@given(seed=st.integers(0, 2**20))
def test_neighbours_among_floats_keep_their_order(scale, seed):
    """Down to those without a full mantissa: only equal ones fall to the index."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(-3, 4, (1, 8), generator=generator, dtype=torch.int32)
    row = (torch.full((1, 8), scale).view(torch.int32) + steps).view(torch.float32)
    ids = route(row, 8, 8, renormalise=False).topk_ids
    assert ids[0].tolist() == ranked(row[0].tolist(), range(8))


def test_padding_rows_have_no_say():
    """A row of weight 0 ranks nothing, whatever it holds."""
    real = torch.tensor([[0.7, 0.2, 0.1, 0.0]])
    for noise in ([0.0, 0.0, 0.0, 1.0], [float("nan")] * 4):
        rows = torch.cat([real, torch.tensor([noise])])
        weights = torch.tensor([1.0, 0.0])
        routes = route(rows, 2, 2, renormalise=True, node_weights=weights)
        assert routes.topk_ids[0].tolist() == [0, 1]
        assert set(routes.topk_ids[1].tolist()) == {0, 1}


def test_a_likely_node_outweighs_an_unlikely_one():
    """Path probabilities decide for whom an expert is bought."""
    rows = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    even = route(rows, 1, 1, renormalise=False)
    tilted = route(rows, 1, 1, renormalise=False, node_weights=torch.tensor([0.1, 1.0]))
    assert even.topk_ids.tolist() == [[0], [0]]
    assert tilted.topk_ids.tolist() == [[1], [1]]


def test_a_broken_row_does_not_rank_for_the_others():
    """NaN adds nothing to any expert."""
    rows = torch.tensor([[0.25, 0.75], [float("nan"), float("nan")]])
    assert expert_mass(rows).tolist() == [0.25, 0.75]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("renormalise", [True, False])
def test_the_host_reads_no_value(mode, renormalise):
    """Tensors without data go through; reading one would raise."""
    routes = route(
        torch.zeros(5, 16, device=META),
        4,
        8,
        renormalise=renormalise,
        mode=mode,
        node_weights=torch.ones(5, device=META),
    )
    assert [tensor.shape for tensor in routes] == [(5, 4), (5, 4)]
    assert all(tensor.device == META for tensor in routes)


def test_half_precision_is_summed_in_single():
    """As routers themselves compute."""
    rows = torch.rand(40, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    routes = route(rows, 2, 4, renormalise=True)
    assert routes.topk_weights.dtype == torch.float32
    same = route(rows.float(), 2, 4, renormalise=True)
    assert torch.equal(routes.topk_ids, same.topk_ids)


def test_sigmoid_scores_keep_their_order_and_ratios():
    """So that a router that renormalises is reproduced."""
    logits = torch.tensor([[2.0, -1.0, 0.5, -3.0]])
    scores = logits.sigmoid()
    probabilities = probabilities_of(logits, "sigmoid")
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(1))
    routes = route(probabilities, 2, 4, renormalise=True)
    natural = scores[0, [0, 2]] / scores[0, [0, 2]].sum()
    assert routes.topk_ids.tolist() == [[0, 2]]
    torch.testing.assert_close(routes.topk_weights[0], natural)


@pytest.mark.parametrize("budget", [3, 17, -1])
def test_a_budget_out_of_range_is_refused(budget):
    """Fewer than a token runs, or more than there are."""
    with pytest.raises(ConfigError, match="choose one from 4 to 16"):
        check(4, budget, 16)


def test_an_unknown_mode_is_refused():
    """With those there are."""
    with pytest.raises(ConfigError, match="'substitution', 'truncation'"):
        check(4, 8, 16, "drop")
