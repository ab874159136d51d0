"""The enumeration itself: exact where it must be, and able to see a bias."""

from collections import Counter
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.lossless import SCORES
from tests.lossless.proof.cuts import Cut, by_score, score_threshold
from tests.lossless.proof.enumeration import (
    Decoding,
    accept_chance,
    draftings,
    residual,
)
from tests.lossless.proof.world import CHAIN, FORK, TREES, coin_world
from tests.lossless.proof.world import seeded_world as world_of


def rows(size=3):
    weights = st.lists(st.integers(0, 9), min_size=size, max_size=size).filter(any)
    return weights.map(lambda w: tuple(Fraction(n, sum(w)) for n in w))


@given(rows(), rows())
def test_one_accept_test_of_a_sampled_token_restores_p(p, q):
    """sum over drafts of q(d) [accept d, or the residual] is p, token by token."""
    refused = sum(q[d] * (1 - accept_chance(p[d], q[d])) for d in range(3))
    rest = residual(p, q)
    emitted = [q[t] * accept_chance(p[t], q[t]) + refused * rest[t] for t in range(3)]
    assert tuple(emitted) == p


@given(rows())
def test_a_top_k_token_outside_both_supports_changes_nothing(p):
    """Where p = q nothing is left after a rejection, and p stays as it is.

    Top-k siblings hold different tokens, the best first.
    """
    assert residual(p, p) == p
    assert accept_chance(Fraction(0), Fraction(0)) == 0
    (draft,) = draftings(coin_world(), FORK, "topk", "own", ())
    assert draft.tokens == (0, 1, 0)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("tree", TREES, ids=lambda tree: str(tree.parents))
def test_no_child_scores_above_its_parent(tree, score):
    """So that the best n nodes, and those above a bound, are closed under parents."""
    for draft in draftings(world_of(Random(1), 3), tree, "sampled", score, ()):
        for node, parent in enumerate(tree.parents):
            assert parent < 0 or draft.scores[node] <= draft.scores[parent]


def decoding(world, cut, tree=CHAIN):
    return Decoding((world,), tree, "sampled", "rejection", "own", cut, 3)


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
