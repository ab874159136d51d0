"""The past fades, remembers sums rather than quotients, and never locks in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.runtime.history import History


def steady(past, steps, accepted, claimed):
    """A past of equal steps of one request at 100 us."""
    for _ in range(steps):
        past.add(1, accepted, claimed, 100.0, None)
    return past


@given(st.floats(0.0, 8.0), st.integers(1, 64))
def test_steady_steps_weigh_as_their_memory(claimed, batch):
    """A half-life of two steps remembers about 2.4 past ones, in tokens and time."""
    terms = steady(History(True), 400, claimed, claimed).terms(batch)
    assert terms.tokens == pytest.approx(2.414 * (1.0 + claimed) * batch, rel=1e-3)
    assert terms.us == pytest.approx(2.414 * 100.0, rel=1e-3)


def test_a_batch_is_remembered_in_the_measure_of_the_next():
    """Tokens of 64 requests are those of one, 64 times."""
    many, one = History(True), History(True)
    for _ in range(10):
        many.add(64, 128.0, 128.0, 100.0, None)
        one.add(1, 2.0, 2.0, 100.0, None)
    assert many.terms(1).tokens == pytest.approx(one.terms(1).tokens)


@given(st.floats(0.2, 1.5))
def test_trust_tends_to_accepted_over_claimed(share):
    past = steady(History(True), 1000, 3.0 * share, 3.0)
    assert past.trust == pytest.approx(share, abs=0.02)


def test_trust_returns_when_nothing_is_claimed():
    past = steady(History(True), 500, 0.0, 3.0)
    assert past.trust < 0.05
    assert steady(past, 500, 0.0, 0.0).trust > 0.5


def test_time_beyond_the_cost_belongs_to_the_next_step_too():
    past = History(True)
    for _ in range(100):
        past.add(1, 1.0, 1.0, 100.0, 150.0)
    past.add(1, 1.0, 1.0, 100.0, None)
    assert past.overhead_us == pytest.approx(50.0)
    assert past.terms(1).us == pytest.approx(2.414 * 150.0 + 50.0, rel=1e-3)


def test_one_slow_step_is_no_rule():
    """The first call compiles and allocates; a median forgets it after two others."""
    past = History(True)
    for step_us in (1e7, 150.0, 150.0):
        past.add(1, 1.0, 1.0, 100.0, step_us)
    assert past.overhead_us == pytest.approx(50.0)


def test_what_is_known_of_drafting_holds_until_the_clock_says_more():
    past = History(True, 70.0)
    assert past.terms(1).us == 70.0
    past.add(1, 1.0, 1.0, 100.0, 130.0)
    assert past.overhead_us == 30.0


def test_a_step_faster_than_its_cost_is_not_negative_time():
    past = History(True)
    past.add(1, 1.0, 1.0, 100.0, 20.0)
    assert past.overhead_us == 0.0
