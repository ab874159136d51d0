"""Time beside a forward: refused where it cannot be, evaluated where it can."""

import pytest

from evict_profile.drafting import DraftClock, Drafting
from evict_profile.errors import ConfigError
from evict_profile.records import parse, replace

ONE = DraftClock(1, (0.0, 100.0, 250.0), 40.0, 10.0)
FOUR = DraftClock(4, (0.0, 400.0, 900.0), 80.0, 20.0)


@pytest.mark.parametrize(
    ("batch", "clock"), [(1, ONE), (2, ONE), (3, FOUR), (99, FOUR)]
)
def test_the_nearest_batch_in_ratio_is_taken_with_a_caveat(batch, clock):
    """Of two as near, the first; the caveat says which."""
    drafting = Drafting("code", "a test", (ONE, FOUR))
    assert drafting.at(batch) == clock
    assert bool(drafting.caveats(batch)) == (batch != clock.batch)


def test_levels_beyond_the_deepest_take_as_long_as_it_did():
    """Level 0 drafts nothing and pays the smaller rest. A clock of no level gives a
    level no time. At another speed the reference is forgotten."""
    assert [ONE.beside_us(depth) for depth in range(3)] == [10.0, 140.0, 290.0]
    assert ONE.max_depth == 2
    assert ONE.beside_us(4) == 250.0 + 2 * (250.0 - 100.0) + 40.0
    assert DraftClock(1, (0.0,), 40.0, 10.0).beside_us(3) == 40.0
    timed = DraftClock(1, (0.0, 100.0), 40.0, 10.0, reference_us=7.0)
    assert timed.at_speed(1.5) == DraftClock(1, (0.0, 150.0), 60.0, 15.0)
    for us, scaled_us in ((20.0, 30.0), (0.0, 0.0), (None, None)):
        assert replace(timed, mechanism_us=us).at_speed(1.5).mechanism_us == scaled_us


@pytest.mark.parametrize(
    ("draft_us", "fixed_us", "sentence"),
    [
        ((5.0,), 0.0, "draft_us must start at 0"),
        ((), 0.0, "draft_us holds no number"),
        ((0.0, 2.0, 1.0), 0.0, "draft_us falls"),
        ((0.0, float("nan")), 0.0, r"draft_us\[1\]: Expected"),
        ((0.0,), -1.0, "fixed_us: Expected"),
    ],
)
def test_a_clock_that_cannot_be_is_refused(draft_us, fixed_us, sentence):
    """Times are finite, from 0, and rise with depth."""
    clock = {"batch": 1, "draft_us": draft_us, "fixed_us": fixed_us}
    with pytest.raises(ConfigError, match=sentence):
        parse(DraftClock, {**clock, "plain_fixed_us": 0.0}, "a clock")


def test_drafting_needs_the_clock_of_distinct_batches():
    for batches in ((), (ONE, ONE)):
        with pytest.raises(ValueError, match=r"at least one batch|twice"):
            Drafting("code", "a test", batches)


def test_verified_tokens_beyond_the_roots_add_to_a_step_as_they_run():
    """At captured widths that is their padding too."""
    drafting = Drafting("code", "a test", (replace(ONE, token_us=2.0), FOUR))
    assert drafting.tokens_us([1, 2, 3], 1, ()).tolist() == [0.0, 2.0, 4.0]
    assert drafting.tokens_us([1, 2, 3], 1, (1, 4)).tolist() == [0.0, 6.0, 6.0]
    assert drafting.tokens_us([4, 9], 4, ()).tolist() == [0.0, 0.0]


def test_a_plain_step_that_extends_takes_the_rest_of_one_that_drafts():
    extending = Drafting("code", "a test", (ONE,)).extending()
    assert [extending.at(1).beside_us(levels) for levels in (0, 1)] == [40.0, 140.0]
