"""Expert budgets: against plain loops, and fit to be captured."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.errors import ConfigError
from evict_profile.runtime.budget import (
    RANKINGS,
    Groups,
    check,
    holds_all,
    picking_order,
    route,
    scores_of,
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
    rows = draw(st.lists(row, min_size=1, max_size=9))
    weight = st.sampled_from([0.0, 0.25, 0.5, 1.0])
    weights = draw(st.none() | st.lists(weight, min_size=len(rows), max_size=len(rows)))
    return rows, top_k, budget, weights


def ranked(values, among):
    return sorted(among, key=lambda i: (-values[i], i))


def natural(row, top_k):
    return ranked(row, range(len(row)))[:top_k]


def union(rows, top_k):
    return {e for row in rows for e in natural(row, top_k)}


def mass_of(rows, weights, top_k=None):
    """Sums over tokens, as a loop has them; of their own top k, where one is given."""
    weights = weights or [1.0] * len(rows)
    counted = [set(natural(row, top_k or len(row))) for row in rows]
    return [
        sum(
            w * row[e] * (e in own)
            for w, row, own in zip(weights, rows, counted, strict=True)
        )
        for e in range(len(rows[0]))
    ]


def kept_by_loops(rows, top_k, budget, weights, ranking):
    """What may run: everything where nothing needs to give way."""
    experts = range(len(rows[0]))
    if len(rows) * top_k <= budget:
        return set(experts)
    mass = mass_of(rows, weights, None if ranking == "mass" else top_k)
    return set(ranked(mass, experts)[:budget])


def routed(layer, ranking="mass", renormalise=False):
    rows, top_k, budget, weights = layer
    node_weights = None if weights is None else torch.tensor(weights)
    return route(
        torch.tensor(rows),
        top_k,
        budget,
        renormalise=renormalise,
        node_weights=node_weights,
        ranking=ranking,
    )


rankings = pytest.mark.parametrize("ranking", RANKINGS)


@rankings
@given(layer=layers())
def test_equal_to_plain_loops(layer, ranking):
    rows, top_k, *_ = layer
    weights, ids = routed(layer, ranking)
    kept = kept_by_loops(*layer, ranking)
    for token, row in enumerate(rows):
        run = ranked(row, kept)[:top_k]
        assert ids[token].tolist() == run
        assert weights[token].tolist() == [row[e] for e in run]


def check_unchanged(routes, rows, top_k):
    ids = [natural(row, top_k) for row in rows]
    assert routes.topk_ids[: len(rows)].tolist() == ids
    expected = [[row[e] for e in own] for row, own in zip(rows, ids, strict=True)]
    assert routes.topk_weights[: len(rows)].tolist() == expected


@rankings
@given(layer=layers())
def test_a_budget_for_all_that_tokens_could_want_changes_nothing(layer, ranking):
    """Tokens x k: rows without a say included, and whatever is ranked first."""
    rows, top_k, _, weights = layer
    room = min(len(rows) * top_k, len(rows[0]))
    assert holds_all(len(rows), top_k, room, len(rows[0]))
    check_unchanged(routed((rows, top_k, room, weights), ranking), rows, top_k)


@given(layers(), st.integers(0, 6))
def test_a_budget_holds_all_that_its_union_could_come_to(layer, spare):
    rows, top_k, budget, _ = layer
    most = min(len(rows) * top_k, len(rows[0]))
    assert holds_all(len(rows), top_k, most + spare, len(rows[0]))
    assert not holds_all(len(rows), top_k, most - 1, len(rows[0]))
    if holds_all(len(rows), top_k, budget, len(rows[0])):
        assert len(union(rows, top_k)) <= budget


@given(layers(), st.integers(0, 2))
def test_ranked_by_top_k_a_union_within_the_budget_changes_nothing(layer, spare):
    """Of the tokens that count; probabilities of 0 and padding rows included."""
    rows, top_k, _, weights = layer
    weights = weights or [1.0] * len(rows)
    order = sorted(range(len(rows)), key=lambda t: weights[t] == 0.0)
    rows, weights = [rows[t] for t in order], [weights[t] for t in order]
    count = sum(w > 0.0 for w in weights)
    wanted = len(union(rows[:count], top_k))
    budget = min(max(wanted, top_k) + spare, len(rows[0]))
    got = routed((rows, top_k, budget, weights), "top-k")
    check_unchanged(got, rows[:count], top_k)


@given(layer=layers())
def test_renormalised_weights_add_up_to_one(layer):
    """Over what is run; a token that runs nothing keeps zeros."""
    raw = routed(layer).topk_weights
    shares = routed(layer, renormalise=True).topk_weights
    sums = shares.sum(dim=1)
    torch.testing.assert_close(sums, (raw.sum(dim=1) > 0).float())


@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e-42])
@given(seed=st.integers(0, 2**20))
def test_neighbours_among_floats_keep_their_order(scale, seed):
    """Down to those without a full mantissa: only equal ones fall to the index."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randint(-3, 4, (1, 8), generator=generator, dtype=torch.int32)
    row = (torch.full((1, 8), scale).view(torch.int32) + steps).view(torch.float32)
    ids = route(row, 8, 8, renormalise=False).topk_ids
    assert ids[0].tolist() == ranked(row[0].tolist(), range(8))


NAN = float("nan")


@rankings
@pytest.mark.parametrize(
    ("row", "weights"),
    [([0.0, 0.0, 0.0, 1.0], [1.0, 0.0]), (4 * [NAN], [1.0, 0.0]), (4 * [NAN], None)],
)
def test_padding_and_broken_rows_rank_nothing(ranking, row, weights):
    """A row of weight 0, whatever it holds; and a row of NaN."""
    rows = [[0.7, 0.2, 0.1, 0.0], row]
    ids = routed((rows, 2, 2, weights), ranking).topk_ids
    assert ids[0].tolist() == [0, 1] and set(ids[1].tolist()) == {0, 1}


@rankings
@pytest.mark.parametrize("budget", [8, 16])
@pytest.mark.parametrize("renormalise", [True, False])
def test_the_host_reads_no_value(renormalise, budget, ranking):
    bias = torch.zeros(16, device=META)
    routes = route(
        torch.zeros(5, 16, device=META),
        4,
        budget,
        renormalise=renormalise,
        node_weights=torch.ones(5, device=META),
        ranking=ranking,
        order=picking_order(torch.zeros(5, 16, device=META), bias, Groups(4, 2)),
    )
    assert [tensor.shape for tensor in routes] == [(5, 4), (5, 4)]
    assert all(tensor.device == META for tensor in routes)


def test_half_precision_is_summed_in_single():
    rows = torch.rand(40, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    routes = route(rows, 2, 4, renormalise=True)
    assert routes.topk_weights.dtype == torch.float32
    same = route(rows.float(), 2, 4, renormalise=True)
    assert torch.equal(routes.topk_ids, same.topk_ids)


def test_scores_are_those_of_the_router():
    logits = torch.tensor([[2.0, -1.0, 0.5, -3.0]])
    torch.testing.assert_close(scores_of(logits, "sigmoid"), logits.sigmoid())
    sums = scores_of(logits, "softmax").sum(dim=1)
    torch.testing.assert_close(sums, torch.ones(1))


@st.composite
def routers(draw):
    """A layer whose router picks by bias or groups: scores, k, budget, weights; how."""
    total, size = draw(st.integers(1, 3)), draw(st.integers(2, 3))
    experts, part = total * size, st.integers(-PARTS, PARTS).map(lambda n: n / PARTS)
    kept = draw(st.integers(1, total))
    top_k = draw(st.integers(1, kept * size))
    budget = draw(st.integers(top_k, experts))
    row = st.lists(part.map(abs), min_size=experts, max_size=experts)
    rows = draw(st.lists(row, min_size=1, max_size=6))
    weight = st.sampled_from([0.25, 0.5, 1.0])
    weights = draw(st.lists(weight, min_size=len(rows), max_size=len(rows)))
    bias = draw(st.none() | st.lists(part, min_size=experts, max_size=experts))
    return (rows, top_k, budget, weights), bias, Groups(total, kept)


def picks_by_loops(row, bias, groups):
    """Experts as a token picks them: those of its own groups first."""
    picked = [s + b for s, b in zip(row, bias or [0.0] * len(row), strict=True)]
    size = len(row) // groups.total
    members = [range(g * size, (g + 1) * size) for g in range(groups.total)]
    count = 2 if bias else 1
    best = [sum(sorted(picked[e] for e in own)[-count:]) for own in members]
    mine = {
        e for g in ranked(best, range(groups.total))[: groups.kept] for e in members[g]
    }
    return [*ranked(picked, mine), *ranked(picked, set(range(len(row))) - mine)]


def kept_by_weights(layer, picks):
    """The budget's experts by the sum of weights that tokens would give them."""
    rows, top_k, budget, weights = layer
    worth = [0.0] * len(rows[0])
    for row, order, weight in zip(rows, picks, weights, strict=True):
        for e in order[:top_k]:
            worth[e] += weight * row[e]
    return ranked(worth, range(len(worth)))[:budget]


@given(router=routers())
def test_biased_and_grouped_picks_are_those_of_plain_loops(router):
    """Each token runs k kept experts, and those outside of its groups come last."""
    layer, bias, groups = router
    rows, top_k, budget, weights = layer
    scores = torch.tensor(rows)
    order = picking_order(scores, None if bias is None else torch.tensor(bias), groups)
    found = route(
        scores,
        top_k,
        budget,
        renormalise=False,
        node_weights=torch.tensor(weights),
        ranking="gate",
        order=order,
    )
    picks = [picks_by_loops(row, bias, groups) for row in rows]
    kept = range(len(rows[0]))
    if not holds_all(len(rows), top_k, budget, len(rows[0])):
        kept = kept_by_weights(layer, picks)
    for row, own, said, gates in zip(
        rows, picks, found.topk_ids, found.topk_weights, strict=True
    ):
        run = [e for e in own if e in kept][:top_k]
        assert said.tolist() == run
        assert gates.tolist() == [row[e] for e in run]


@given(router=routers(), spare=st.integers(0, 2))
def test_a_union_within_the_budget_changes_no_biased_or_grouped_pick(router, spare):
    """Scores are positive here: an expert of weight zero counts for nothing."""
    (rows, top_k, _, weights), bias, groups = router
    rows = [[score + 1 / PARTS for score in row] for row in rows]
    picks = [picks_by_loops(row, bias, groups)[:top_k] for row in rows]
    wanted = len({e for own in picks for e in own})
    scores = torch.tensor(rows)
    found = route(
        scores,
        top_k,
        min(wanted + spare, len(rows[0])),
        renormalise=True,
        node_weights=torch.tensor(weights),
        ranking="gate",
        order=picking_order(scores, bias and torch.tensor(bias), groups),
    )
    assert found.topk_ids.tolist() == picks


def test_gates_are_ranked_by_their_share_where_the_router_renormalises():
    """A token with small scores then counts as much as one with large scores."""
    rows = torch.tensor([[0.9, 0.8, 0.0, 0.0], [0.0, 0.0, 0.2, 0.01]])
    kept = [
        route(rows, 2, 2, renormalise=shared, ranking="gate").topk_ids[0].tolist()
        for shared in (True, False)
    ]
    assert kept == [[0, 2], [0, 1]]


@pytest.mark.parametrize(
    ("budget", "ranking", "says"),
    [
        *((wrong, "mass", "choose one from 4 to 16") for wrong in (3, 17, -1)),
        (8, "oracle", "'mass', 'top-k', 'gate'"),
    ],
)
def test_what_cannot_be_kept_is_refused(budget, ranking, says):
    with pytest.raises(ConfigError, match=says):
        check(4, budget, 16, ranking=ranking)
