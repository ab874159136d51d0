"""The enumeration itself: exact where it must be, and able to see a bias."""

from collections import Counter, defaultdict
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.lossless import SCORES
from tests.lossless.proof.cuts import Cut, by_score, score_threshold
from tests.lossless.proof.enumeration import (
    Decoding,
    Verification,
    accept_chance,
    draftings,
    marginal,
    residual,
    total_variation,
)
from tests.lossless.proof.world import CHAIN, FORK, TREES, Tree, coin_world
from tests.lossless.proof.world import seeded_world as world_of

HALF = Fraction(1, 2)


def rows(size=3):
    weights = st.lists(st.integers(0, 9), min_size=size, max_size=size).filter(any)
    return weights.map(lambda w: tuple(Fraction(n, sum(w)) for n in w))


def law(emissions):
    """Emissions as a mapping; the same tokens may come about in several ways."""
    found = defaultdict(Fraction)
    for tokens, chance in emissions:
        found[tokens] += chance
    return found


@given(rows(), rows())
def test_one_accept_test_of_a_sampled_token_restores_p(p, q):
    """sum over drafts of q(d) [accept d, or the residual] is p, token by token."""
    refused = sum(q[d] * (1 - accept_chance(p[d], q[d])) for d in range(3))
    rest = residual(p, q)
    emitted = [q[t] * accept_chance(p[t], q[t]) + refused * rest[t] for t in range(3)]
    assert tuple(emitted) == p


def verified(tree, acceptance, tokens, *kept):
    return Verification(coin_world(), tree, acceptance, tokens, frozenset(kept))


def test_rejection_by_hand():
    """p fair, q = (.9, .1): a drafted 0 stays with 5/9, else 1 is what is left."""
    chain = verified(CHAIN, "rejection", (0, 0, 0), 0)
    fork = verified(FORK, "rejection", (0, 1, 0), 0, 1)
    first = {(0,): Fraction(5, 9), (1,): Fraction(4, 9)}
    assert law(chain.emissions((), 1)) == law(fork.emissions((), 1)) == first
    # An accepted last draft is followed by a bonus token from p.
    then = {(0, 0): Fraction(5, 18), (0, 1): Fraction(5, 18), (1,): Fraction(4, 9)}
    assert law(chain.emissions((), 2)) == then
    # After 0 is rejected, all is left on 1: the second sibling is accepted for sure.
    assert {len(tokens) for tokens in law(fork.emissions((), 3))} == {2}


def test_target_only_follows_the_first_sibling_that_holds_the_sample():
    found = verified(FORK, "target-only", (0, 0, 1), 0, 1, 2).emissions((), 3)
    longest = {(0, 1, 0): Fraction(1, 8), (0, 1, 1): Fraction(1, 8)}
    assert law(found) == {(1,): HALF, (0, 0): Fraction(1, 4), **longest}


def test_match_and_target_only_are_one_law():
    """Emitting the target's sample while it equals the draft is the same walk."""
    for tokens in [(0, 0, 0), (0, 1, 0), (1, 1, 1)]:
        one, other = (
            law(verified(CHAIN, acceptance, tokens, 0, 1).emissions((), 4))
            for acceptance in ("target-only", "match")
        )
        assert one == other


@given(rows())
def test_a_top_k_token_outside_both_supports_changes_nothing(p):
    """Where p = q nothing is left after a rejection, and p stays as it is.

    Top-k siblings hold different tokens, the best first.
    """
    assert residual(p, p) == p
    assert accept_chance(Fraction(0), Fraction(0)) == 0
    (draft,) = draftings(coin_world(), FORK, "topk", "own", ())
    assert draft.tokens == (0, 1, 0)


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        ("own", (Fraction(1, 10), Fraction(1, 20), Fraction(9, 200))),
        ("shifted", (Fraction(1), Fraction(1, 10), Fraction(1, 20))),
        ("max", (Fraction(9, 10), Fraction(9, 20), Fraction(81, 200))),
    ],
)
def test_scores_of_a_chain_by_hand(score, expected):
    """The draft 1, 0, 0 in the coin world, whose drafter is fair after a 1."""
    found = draftings(coin_world(), CHAIN, "sampled", score, ())
    (draft,) = [draft for draft in found if draft.tokens == (1, 0, 0)]
    assert draft.scores == expected


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("tree", TREES, ids=lambda tree: str(tree.parents))
def test_no_child_scores_above_its_parent(tree, score):
    """So that the best n nodes, and those above a bound, are closed under parents."""
    for draft in draftings(world_of(Random(1), 3), tree, "sampled", score, ()):
        for node, parent in enumerate(tree.parents):
            assert parent < 0 or draft.scores[node] <= draft.scores[parent]


def decoding(world, cut, tree=CHAIN):
    return Decoding((world,), tree, "sampled", "rejection", "own", cut, 3)


def test_one_request_of_a_batch_has_its_own_marginal():
    """Requests that do not look at each other decode as if alone."""
    worlds = (world_of(Random(1), 2), world_of(Random(2), 2))
    cut = Cut(score_threshold, by_score, bound=HALF)
    alone = [decoding(world, cut, Tree((-1, 0))) for world in worlds]
    both = replace(alone[0], worlds=worlds).law()
    for request in range(2):
        assert total_variation(marginal(both, request), alone[request].law()) == 0


def simulate(world, bound, length, rng):
    """Speculative sampling of a chain of three, written anew and in floats."""

    def draw(row):
        return rng.choices(range(len(row)), row)[0]

    out: list[int] = []
    while len(out) < length:
        drafted: list[int] = []
        score, width = 1.0, 0
        for _ in range(3):
            row = [float(x) for x in world.q((*out, *drafted))]
            drafted.append(draw(row))
            score *= row[drafted[-1]]
            width += score >= bound
        for token in drafted[:width]:
            p = [float(x) for x in world.p(tuple(out))]
            q = [float(x) for x in world.q(tuple(out))]
            if rng.random() * q[token] >= p[token]:
                out.append(draw([max(a - b, 0.0) for a, b in zip(p, q, strict=True)]))
                break
            out.append(token)
        else:
            out.append(draw([float(x) for x in world.p(tuple(out))]))
    return tuple(out[:length])


@pytest.mark.parametrize("seed", [0, 1])
def test_a_simulation_agrees_with_the_enumeration(seed):
    """10,000 simulated outputs: every frequency within 5 standard errors."""
    world, draws = world_of(Random(seed), 3), 10_000
    law = decoding(world, Cut(score_threshold, by_score, bound=Fraction(41, 100))).law()
    rng = Random(seed)
    counts = Counter(simulate(world, 0.41, 3, rng) for _ in range(draws))
    assert set(counts) <= {tokens for (tokens,), chance in law.items() if chance}
    for (tokens,), chance in law.items():
        error = (float(chance * (1 - chance)) / draws) ** 0.5
        assert abs(counts[tokens] / draws - float(chance)) <= 5 * error + 1e-3
