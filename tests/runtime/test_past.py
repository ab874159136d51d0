"""The past fades, remembers sums rather than quotients, and never locks in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.runtime.decision import Terms
from evict_profile.runtime.past import Past


def test_without_a_past_there_is_only_this_step() -> None:
    """The terms are those of the plain ratio."""
    assert Past().terms == Terms()


@given(st.floats(1.0, 8.0), st.floats(100.0, 1e5))
def test_steady_steps_weigh_as_their_memory(expected: float, priced_us: float) -> None:
    """A half-life of two steps remembers about 2.4 past ones, in tokens and time."""
    past = Past()
    for _ in range(200):
        past.observe(expected, expected - 1, expected - 1, priced_us, None)
    assert past.terms.tokens == pytest.approx(2.414 * expected, rel=1e-3)
    assert past.terms.us == pytest.approx(2.414 * priced_us, rel=1e-3)


def test_long_steps_weigh_by_their_length() -> None:
    """Tokens over time, not a mean of quotients, as in renewal reward."""
    past = Past()
    for _ in range(100):
        past.observe(6.0, 5.0, 5.0, 200.0, None)
        past.observe(1.0, 0.0, 0.0, 100.0, None)
    even = (6.0 + 1.0) / (200.0 + 100.0)
    assert past.terms.tokens / past.terms.us == pytest.approx(even, rel=0.3)
    assert past.terms.tokens / past.terms.us > 0.5 * (6.0 / 200.0 + 1.0 / 100.0) * 0.9


@given(st.floats(0.2, 1.5))
def test_trust_tends_to_accepted_over_claimed(share: float) -> None:
    """Whatever the drafter's bias."""
    past = Past()
    for _ in range(1000):
        past.observe(1.0 + 3.0 * share, 3.0 * share, 3.0, 100.0, None)
    assert past.terms.trust == pytest.approx(share, abs=0.02)


def test_trust_returns_when_nothing_is_claimed() -> None:
    """Steps that verify roots alone teach nothing, and doubt fades."""
    past = Past()
    for _ in range(500):
        past.observe(1.0, 0.0, 3.0, 100.0, None)
    assert past.terms.trust < 0.05
    for _ in range(500):
        past.observe(1.0, 0.0, 0.0, 100.0, None)
    assert past.terms.trust > 0.5


def test_time_beyond_the_price_belongs_to_the_next_step_too() -> None:
    """It is learnt from the clock, and kept where the clock is silent."""
    past = Past()
    for _ in range(1000):
        past.observe(2.0, 1.0, 1.0, 100.0, 150.0)
    assert past.unpriced_us == pytest.approx(50.0, rel=1e-3)
    past.observe(2.0, 1.0, 1.0, 100.0, None)
    assert past.terms.us == pytest.approx(2.414 * 150.0 + 50.0, rel=1e-3)


def test_a_step_faster_than_its_price_is_not_negative_time() -> None:
    """Costs stay above zero."""
    past = Past()
    past.observe(2.0, 1.0, 1.0, 100.0, 20.0)
    assert past.unpriced_us == 0.0


def test_the_first_clocked_step_is_believed_whole() -> None:
    """There is nothing to average it with."""
    past = Past()
    past.observe(2.0, 1.0, 1.0, 100.0, 180.0)
    assert past.unpriced_us == pytest.approx(80.0)
