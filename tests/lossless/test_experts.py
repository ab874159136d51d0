"""Which experts a budget lets run, against cases by hand and a simulation."""

from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.lossless.cuts import FixedWidth, Kept
from evict_profile.lossless.enumeration import (
    NO_DRAFT,
    Draft,
    Law,
    marginal,
    target_law,
    total_variation,
)
from evict_profile.lossless.rules import Acceptance
from evict_profile.lossless.world import (
    CHAIN,
    ONE,
    Row,
    Tokens,
    ToyWorld,
    Tree,
    prefixes,
)
from evict_profile.runtime.budget import MODES, RANKINGS, Mode, Ranking, route
from tests.lossless.cases import within
from tests.lossless.toy_experts import (
    AsActivated,
    BudgetedDecoding,
    ExpertBudget,
    Mass,
    MoeWorld,
    RoutedToken,
    Static,
    ToyLayer,
    activated,
    cold,
    runs,
    seeded_moe_world,
)

PARTS = 64
"""Probabilities are multiples of 1/64, so that floats sum exactly and ties are many."""


def tenths(*values: int) -> Row:
    """Fractions from whole tenths."""
    return tuple(Fraction(value, 10) for value in values)


LAYER = ToyLayer(
    router=tenths(5, 2, 3),
    rows=(tenths(10, 0), tenths(0, 10), tenths(2, 8)),
    rest=tenths(4, 6),
)


@st.composite
def layers(draw: st.DrawFn) -> tuple[list[RoutedToken], int]:
    """What some tokens ask of one layer, and a budget that it can keep."""
    experts = draw(st.integers(1, 9))
    top_k = draw(st.integers(1, experts))
    part = st.integers(0, PARTS).map(lambda n: Fraction(n, PARTS))
    row = st.lists(part, min_size=experts, max_size=experts).map(tuple)
    weight = st.sampled_from([Fraction(n, 4) for n in range(5)])
    token = st.builds(RoutedToken, row, st.just(top_k), weight)
    tokens = draw(st.lists(token, min_size=1, max_size=6))
    return tokens, draw(st.integers(top_k, experts))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("by_path", [False, True])
@pytest.mark.parametrize("ranking", RANKINGS)
@given(layer=layers())
def test_tokens_run_what_the_runtime_lets_them_run(
    layer: tuple[list[RoutedToken], int],
    ranking: Ranking,
    by_path: bool,
    mode: Mode,
) -> None:
    """The same experts with the same probabilities, wherever these are not zero."""
    tokens, size = layer
    routes = route(
        torch.tensor([[float(p) for p in token.router] for token in tokens]),
        tokens[0].top_k,
        size,
        renormalise=False,
        mode=mode,
        node_weights=torch.tensor([float(w.weight) for w in tokens])
        if by_path
        else None,
        ranking=ranking,
    )
    kept = Mass(mode, size, by_path, by_run=ranking == "top-k").allowed(tokens)
    ids, weights = routes.topk_ids.tolist(), routes.topk_weights.tolist()
    for token, named, given_ in zip(tokens, ids, weights, strict=True):
        ours = runs(token.router, token.top_k, kept, mode)
        theirs = {e: p for e, p in zip(named, given_, strict=True) if p}
        assert {e: token.router[e] for e in ours if token.router[e]} == theirs
        assert mode == "truncation" or ours == set(named)


@pytest.mark.parametrize(
    ("kept", "mode", "expected"),
    [
        # The best two: 5/8 of expert 0 and 3/8 of expert 2.
        ({0, 1, 2}, "substitution", (Fraction(56, 80), Fraction(24, 80))),
        # Expert 1 for expert 2: 5/7 and 2/7.
        ({0, 1}, "substitution", (Fraction(5, 7), Fraction(2, 7))),
        # Nobody for expert 2: all of it is expert 0.
        ({0, 1}, "truncation", tenths(10, 0)),
        # Nobody at all: what the rest of the model says.
        ({1}, "truncation", tenths(4, 6)),
    ],
)
def test_what_a_layer_says_within_a_budget(
    kept: set[int], mode: Mode, expected: Row
) -> None:
    """Top 2 of three experts with probabilities .5, .2, .3."""
    assert LAYER.mixed(runs(LAYER.router, 2, frozenset(kept), mode)) == expected


def test_at_temperature_zero_the_mix_is_what_is_maximised() -> None:
    """Without expert 0, (.2, .8) and (0, 1) are mixed, and say 1 for certain."""
    rows = dict.fromkeys(prefixes(2), tenths(5, 5))
    world = MoeWorld({}, rows, dict.fromkeys(rows, LAYER), top_k=2)
    frozen = cold(world)
    prefix = (0, 1, 0, 1, 1, 0)
    assert world.p(prefix) == (Fraction(7, 10), Fraction(3, 10))
    assert frozen.p(prefix) == (1, 0)
    kept = frozenset({1, 2})
    warm, certain = (
        each.within([prefix], kept, "substitution").p(prefix)
        for each in (world, frozen)
    )
    assert warm == (Fraction(3, 25), Fraction(22, 25))
    assert certain == (0, 1)
    assert world.experts == 3


HALF = Fraction(1, 2)
SAYS = ((Fraction(9, 10), Fraction(1, 10)), (Fraction(2, 10), Fraction(8, 10)))
"""Expert 0 says 0 with .9, expert 1 with .2."""


def two_experts(root: Row, after_0: Row, after_1: Row, q: Row) -> MoeWorld:
    """A token runs one of two experts, as routed behind what it is."""
    routers = {(): root, (0,): after_0, (1,): after_1}
    contexts = prefixes(2)
    fair = tenths(5, 5)
    layers = {c: ToyLayer(routers[c[-1:]], SAYS, fair) for c in contexts}
    return MoeWorld({}, dict.fromkeys(contexts, q), layers, top_k=1)


WORLD = two_experts(tenths(6, 4), tenths(1, 9), tenths(9, 1), tenths(9, 1))
"""The root wants expert 0, and a drafted 0 wants expert 1 more."""


def decoding(
    budget: ExpertBudget, *worlds: MoeWorld, width: int = 1, horizon: int = 1
) -> BudgetedDecoding:
    """Target-only acceptance of one top-k draft."""
    cut, tree = FixedWidth(width), Tree((-1,))
    return BudgetedDecoding(
        worlds, tree, "topk", "target-only", "own", cut, horizon, budget
    )


def zero_first(one: BudgetedDecoding) -> Fraction:
    """How likely the first request's first token is 0."""
    law = one.law()
    return sum((c for out, c in law.items() if out[0][0] == 0), Fraction(0))


@pytest.mark.parametrize(
    ("budget", "chance"),
    [
        # Masses .7 and 1.3: expert 1 speaks for both tokens.
        (Mass("substitution", 1), Fraction(2, 10)),
        # Nobody speaks for the root, and the rest of the model is fair.
        (Mass("truncation", 1), HALF),
        # The draft counts .9: masses .69 and 1.21.
        (Mass("substitution", 1, by_path=True), Fraction(2, 10)),
        (Mass("substitution", 2), Fraction(9, 10)),
        (Static("substitution", frozenset({0})), Fraction(9, 10)),
    ],
    ids=str,
)
def test_one_token_by_hand(budget: ExpertBudget, chance: Fraction) -> None:
    """Without a budget the root says 0 with .9."""
    assert zero_first(decoding(budget, WORLD)) == chance


def test_a_node_that_is_unlikely_counts_less() -> None:
    """Masses .9 and 1.1 by tokens; .8 and .7 where the draft counts one half."""
    unsure = two_experts(tenths(7, 3), tenths(2, 8), tenths(2, 8), tenths(5, 5))
    by_path = Mass("substitution", 1, by_path=True)
    assert zero_first(decoding(by_path, unsure)) == Fraction(9, 10)
    by_token = Mass("substitution", 1)
    assert zero_first(decoding(by_token, unsure)) == Fraction(2, 10)


def test_at_temperature_zero_another_token_is_certain() -> None:
    """Expert 1 says 1, where the target says 0."""
    frozen = cold(WORLD)
    assert zero_first(decoding(Mass("substitution", 2), frozen)) == 1
    assert zero_first(decoding(Mass("substitution", 1), frozen)) == 0


def test_what_is_verified_decides_what_is_said() -> None:
    """Cutting drafts is no longer lossless: alone, the root keeps its expert."""
    budget = Mass("substitution", 1)
    chances = [zero_first(decoding(budget, WORLD, width=n)) for n in (0, 1)]
    assert chances == [Fraction(9, 10), Fraction(2, 10)]


def verifier(one: BudgetedDecoding, *requests: tuple[Tokens, Draft, Kept]) -> ToyWorld:
    """What the last request is verified against, from outputs, drafts and cuts."""
    outputs, drafts, kept = zip(*requests, strict=True)
    return one.verifiers(outputs, drafts, kept)[-1]


def test_siblings_that_are_drafted_alike_both_count() -> None:
    """Beside one 0 the root keeps its expert with 1.1 to .9, beside two it does not."""
    world = two_experts(tenths(8, 2), tenths(3, 7), tenths(3, 7), tenths(5, 5))
    one = replace(decoding(Mass("substitution", 1), world), tree=Tree((-1, -1)))
    alike = Draft((0, 0), (HALF, HALF), HALF * HALF)
    for kept, row in (({0}, SAYS[0]), ({1}, SAYS[0]), ({0, 1}, SAYS[1])):
        assert verifier(one, ((), alike, frozenset(kept))).p(()) == row


def test_a_request_that_left_the_batch_asks_for_nothing() -> None:
    """What it would have asked for next, expert 1, is not kept for it."""
    one = decoding(Mass("substitution", 1), WORLD, WORLD)
    none: Kept = frozenset()
    left, staying = ((0,), NO_DRAFT, none), ((), NO_DRAFT, none)
    assert verifier(one, left, staying).p(()) == SAYS[0]
    longer = replace(one, horizon=2)
    assert verifier(longer, left, staying).p(()) == SAYS[1]


@pytest.mark.parametrize(
    ("routers", "top_k"),
    [
        # Three tokens run experts 0 and 2, of masses 1.1 and .7; expert 1 has 1.2.
        ([tenths(5, 4, 1), tenths(5, 4, 1), tenths(1, 4, 5)], 1),
        # Top 2 of four: experts 0, 1 and 3 are run; expert 2 outranks expert 3.
        ([tenths(5, 3, 2, 0), tenths(3, 1, 2, 4)], 2),
    ],
)
def test_an_expert_that_no_token_runs_can_outrank_one_that_is_run(
    routers: list[Row], top_k: int
) -> None:
    """A budget that would hold all activated experts does not keep them."""
    tokens = [RoutedToken(router, top_k, Fraction(1)) for router in routers]
    kept = AsActivated("substitution").allowed(tokens)
    assert len(kept) == len(activated(tokens))
    assert kept != activated(tokens)
    assert AsActivated("substitution", by_run=True).allowed(tokens) == activated(tokens)


def test_with_room_for_k_experts_a_token_nothing_is_ranked() -> None:
    """Two tokens activate experts 0 and 2, and expert 1 has more mass than either."""
    tokens = [RoutedToken(row, 1, ONE) for row in (tenths(5, 4, 1), tenths(1, 4, 5))]
    assert Mass("substitution", 2).allowed(tokens) == {0, 2}


def test_a_neighbour_changes_what_is_said() -> None:
    """Plain decoding: the same prefix beside one user says 0, beside another 1."""
    tame = cold(two_experts(*[tenths(6, 4)] * 3, tenths(5, 5)))
    wild = cold(two_experts(*[tenths(1, 9)] * 3, tenths(5, 5)))
    budget = Mass("substitution", 1)
    beside_tame, beside_wild = (
        zero_first(decoding(budget, tame, other, width=0)) for other in (tame, wild)
    )
    assert (beside_tame, beside_wild) == (1, 0)


def test_two_texts_become_dependent() -> None:
    """After one token, each request's experts depend on what the other has said.

    A request that has said 0 wants expert 1 with .6, one that has said 1 expert 0
    with .9. Both say 0 at first with .81, and only then does expert 1 speak for both.
    """
    world = two_experts(tenths(6, 4), tenths(4, 6), tenths(9, 1), tenths(5, 5))
    budget = Mass("substitution", 1)
    law = decoding(budget, world, world, width=0, horizon=2).law()
    assert law[(0, 0), (0, 0)] == Fraction(81, 100) * Fraction(4, 100)
    assert law[(0, 0), (1, 0)] == Fraction(9, 100) * Fraction(81, 100)
    one, other = marginal(law, 0), marginal(law, 1)
    independent = {(*a, *b): p * q for a, p in one.items() for b, q in other.items()}
    assert total_variation(law, independent) > 0


def sampled(acceptance: Acceptance, budget: ExpertBudget) -> Law:
    """One token, one draft that is a fair coin and wants the expert that says it."""
    world = two_experts(tenths(6, 4), tenths(9, 1), tenths(1, 9), tenths(5, 5))
    one = decoding(budget, world)
    return replace(one, drafts="sampled", acceptance=acceptance).law()


def test_rejection_within_a_budget_is_no_sample_of_any_p() -> None:
    """The budgeted p depends on the draft that it tests.

    A draft 0 keeps expert 0, a draft 1 expert 1. Either is likelier by its expert than
    by q, and so is always accepted: 0 comes with .5. Samples of what the target says
    within the budget are 0 with (.9 + .2) / 2, and of the target itself with .9.
    """
    budget = Mass("substitution", 1)
    assert sampled("rejection", budget)[((0,),)] == HALF
    assert sampled("target-only", budget)[((0,),)] == Fraction(55, 100)


@pytest.mark.parametrize("mode", MODES)
def test_the_same_experts_in_each_step_are_a_model_of_their_own(mode: Mode) -> None:
    """Another than the target, but exact for itself, under rejection too."""
    for seed in range(6):
        draw = within(
            lambda w, rng: Static(mode, frozenset({0, 1})), acceptance="rejection"
        )
        one = draw(Random(seed))
        assert isinstance(one, BudgetedDecoding)
        (world,) = one.worlds
        own = world.within(prefixes(world.vocabulary), frozenset({0, 1}), mode)
        assert one.law() == target_law((own,), one.horizon)


def test_errors_add_up_along_a_text() -> None:
    """More tokens never show less, and on average they show more."""
    draw = within(lambda world, rng: Mass("substitution", world.top_k))
    sums = [Fraction(0)] * 3
    for seed in range(12):
        one = draw(Random(seed))
        shorter = [replace(one, horizon=n) for n in (1, 2, 3)]
        found = [
            total_variation(d.law(), target_law(d.worlds, d.horizon)) for d in shorter
        ]
        assert all(a <= b for a, b in pairwise(found))
        sums = [a + b for a, b in zip(sums, found, strict=True)]
    assert sums[0] < sums[1] < sums[2]


@cache
def step(
    world: MoeWorld, budget: int, mode: Mode, out: Tokens
) -> tuple[Tokens, list[list[float]]]:
    """A chain of three greedy drafts, and what is said behind the root and each.

    In floats, with the runtime's own router code.
    """
    tokens = out
    for _ in range(3):
        row = world.q(tokens)
        tokens += (row.index(max(row)),)
    layers = [world.layer(tokens[: len(out) + n]) for n in range(4)]
    routers = torch.tensor([[float(p) for p in layer.router] for layer in layers])
    weights, ids = route(routers, world.top_k, budget, renormalise=True, mode=mode)
    rows = []
    for layer, shares, experts in zip(layers, weights, ids, strict=True):
        says = torch.tensor([[float(p) for p in row] for row in layer.rows])
        said = (shares[:, None] * says[experts]).sum(dim=0)
        rest = [float(p) for p in layer.rest]
        rows.append(said.tolist() if said.sum() > 0 else rest)
    return tokens[len(out) :], rows


def simulate(
    world: MoeWorld, budget: int, mode: Mode, length: int, rng: Random
) -> Tokens:
    """Target-only acceptance, step by step."""
    out: Tokens = ()
    while len(out) < length:
        drafted, rows = step(world, budget, mode, out)
        for row, draft in zip(rows, (*drafted, None), strict=True):
            token = rng.choices(range(len(row)), row)[0]
            out += (token,)
            if token != draft:
                break
    return out[:length]


@pytest.mark.parametrize("mode", MODES)
def test_a_simulation_agrees_with_the_enumeration(mode: Mode) -> None:
    """10,000 simulated outputs: every frequency within 5 standard errors."""
    draws, world = 10_000, seeded_moe_world(Random(1), 2, 4, 2)
    one = replace(decoding(Mass(mode, 2), world, width=3, horizon=3), tree=CHAIN)
    law, rng = one.law(), Random(0)
    assert total_variation(law, target_law((world,), 3)) > Fraction(1, 20)
    outputs = [simulate(world, 2, mode, 3, rng) for _ in range(draws)]
    for (tokens,), chance in law.items():
        error = (float(chance * (1 - chance)) / draws) ** 0.5
        assert abs(outputs.count(tokens) / draws - float(chance)) <= 5 * error + 1e-3
