"""What one request emits, against cases worked out by hand."""

from collections.abc import Iterable
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from evict_profile.lossless.enumeration import (
    CHAIN,
    FORK,
    Row,
    Tokens,
    Verification,
    accept_chance,
    coin_world,
    residual,
)

HALF = Fraction(1, 2)


def rows(size: int = 3) -> st.SearchStrategy[Row]:
    """Probability rows with small integer weights, zeros included."""
    weights = st.lists(st.integers(0, 9), min_size=size, max_size=size).filter(any)
    return weights.map(lambda w: tuple(Fraction(n, sum(w)) for n in w))


def law(emissions: Iterable[tuple[Tokens, Fraction]]) -> dict[Tokens, Fraction]:
    """Emissions as a mapping; the same tokens may come about in several ways."""
    found: dict[Tokens, Fraction] = {}
    for tokens, chance in emissions:
        found[tokens] = found.get(tokens, Fraction(0)) + chance
    return found


@given(rows(), rows())
def test_one_accept_test_of_a_sampled_token_restores_p(p: Row, q: Row) -> None:
    """sum over drafts of q(d) [accept d, or the residual] is p, token by token."""
    refused = sum(q[d] * (1 - accept_chance(p[d], q[d])) for d in range(3))
    rest = residual(p, q)
    emitted = [q[t] * accept_chance(p[t], q[t]) + refused * rest[t] for t in range(3)]
    assert tuple(emitted) == p


def test_rejection_of_one_draft_by_hand() -> None:
    """p fair, q = (.9, .1): a drafted 0 stays with 5/9, else 1 is what is left."""
    kept = Verification(coin_world(), CHAIN, "rejection", (0, 0, 0), frozenset({0}))
    assert law(kept.emissions((), 1)) == {(0,): Fraction(5, 9), (1,): Fraction(4, 9)}
    # An accepted last draft is followed by a bonus token from p.
    assert law(kept.emissions((), 2)) == {
        (0, 0): Fraction(5, 18),
        (0, 1): Fraction(5, 18),
        (1,): Fraction(4, 9),
    }


def test_rejection_of_two_siblings_by_hand() -> None:
    """The second sibling is tested against what p has left after the first."""
    kept = Verification(coin_world(), FORK, "rejection", (0, 1, 0), frozenset({0, 1}))
    # After 0 is rejected, all is left on 1: the second sibling is accepted for sure.
    assert law(kept.emissions((), 1)) == {(0,): Fraction(5, 9), (1,): Fraction(4, 9)}
    assert {len(tokens) for tokens in law(kept.emissions((), 3))} == {2}


def test_target_only_follows_the_first_sibling_that_holds_the_sample() -> None:
    """Two siblings with one token: the elder is followed, and p is what is emitted."""
    kept = Verification(
        coin_world(), FORK, "target-only", (0, 0, 1), frozenset({0, 1, 2})
    )
    assert law(kept.emissions((), 3)) == {
        (1,): HALF,
        (0, 0): Fraction(1, 4),
        (0, 1, 0): Fraction(1, 8),
        (0, 1, 1): Fraction(1, 8),
    }


def test_match_and_target_only_are_one_law() -> None:
    """Emitting the target's sample while it equals the draft is the same walk."""
    for tokens in [(0, 0, 0), (0, 1, 0), (1, 1, 1)]:
        world, kept = coin_world(), frozenset({0, 1})
        one = Verification(world, CHAIN, "target-only", tokens, kept)
        other = Verification(world, CHAIN, "match", tokens, kept)
        assert law(one.emissions((), 4)) == law(other.emissions((), 4))


@given(rows())
def test_a_top_k_token_outside_both_supports_changes_nothing(p: Row) -> None:
    """Where p = q nothing is left after a rejection, and p stays as it is."""
    assert residual(p, p) == p
    assert accept_chance(Fraction(0), Fraction(0)) == 0
