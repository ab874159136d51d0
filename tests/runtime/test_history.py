"""The past fades, remembers sums rather than quotients, and never locks in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.runtime.decision import History


def steady(past, steps, accepted, expected):
    """A past of equal steps of one request at 100 us."""
    for _ in range(steps):
        past.add(1, accepted, expected, 100.0, None)
    return past


@given(st.floats(0.0, 8.0), st.integers(1, 64))
def test_steady_steps_weigh_as_their_memory(expected, batch):
    """A half-life of two steps remembers about 2.4 past ones, in tokens and time."""
    terms = steady(History(True), 400, expected, expected).terms(batch)
    assert terms.tokens == pytest.approx(2.414 * (1.0 + expected) * batch, rel=1e-3)
    assert terms.us == pytest.approx(2.414 * 100.0, rel=1e-3)


def test_a_batch_is_remembered_in_the_measure_of_the_next():
    """Tokens of 64 requests are those of one, 64 times."""
    many, one = History(True), History(True)
    for _ in range(10):
        many.add(64, 128.0, 128.0, 100.0, None)
        one.add(1, 2.0, 2.0, 100.0, None)
    assert many.terms(1).tokens == pytest.approx(one.terms(1).tokens)


@given(st.floats(0.2, 1.5))
def test_the_ratio_tends_to_accepted_over_expected(share):
    past = steady(History(True), 1000, 3.0 * share, 3.0)
    assert past.acceptance_ratio == pytest.approx(share, abs=0.02)


def test_the_ratio_returns_when_nothing_is_expected():
    past = steady(History(True), 500, 0.0, 3.0)
    assert past.acceptance_ratio < 0.05
    assert steady(past, 500, 0.0, 0.0).acceptance_ratio > 0.5


@pytest.mark.parametrize(
    ("draft_us", "timed_us", "overhead_us"),
    [
        (0.0, 100 * [150.0], 50.0),
        # A median forgets one slow step.
        (0.0, [150.0, 150.0, 1e7], 50.0),
        # What is known of drafting holds until the clock says more.
        (70.0, [None], 70.0),
        (70.0, [130.0], 30.0),
        # A step faster than its cost is not negative time.
        (0.0, [20.0], 0.0),
    ],
)
def test_time_beyond_the_cost_is_overhead(draft_us, timed_us, overhead_us):
    past = History(True, draft_us)
    assert past.terms(1).us == draft_us
    for step_us in timed_us:
        past.add(1, 1.0, 1.0, 100.0, step_us)
    assert past.overhead_us == pytest.approx(overhead_us)
