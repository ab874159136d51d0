"""What a workload is in a table: refused where it cannot be, evaluated where it can."""

import pytest

from evict_profile.errors import ConfigError
from evict_profile.records import parse, replace
from evict_profile.table import (
    Acceptance,
    ActivationCurve,
    BatchActivation,
    ConditionalAcceptance,
    DraftClock,
    Drafting,
)

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
    assert [ONE.overhead_us(depth) for depth in range(3)] == [10.0, 140.0, 290.0]
    assert ONE.max_depth == 2
    assert ONE.overhead_us(4) == 250.0 + 2 * (250.0 - 100.0) + 40.0
    assert DraftClock(1, (0.0,), 40.0, 10.0).overhead_us(3) == 40.0
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


def test_an_activation_curve_cannot_fall():
    """Batches are distinct, as clocks of drafting are; a budget caps every curve."""
    for batches in ((), (ONE, ONE)):
        with pytest.raises(ValueError, match=r"at least one batch|twice"):
            Drafting("code", "a test", batches)
    with pytest.raises(ValueError, match="union falls"):
        ActivationCurve("code", False, (0.0, 4.0, 3.0))
    with pytest.raises(ValueError, match="twice"):
        ActivationCurve("c", False, (0.0, 4.0), (BatchActivation(1, (0.0, 4.0)),) * 2)
    curve = ActivationCurve("c", False, (0.0, 4.0, 9.0), (BatchActivation(2, (7.0,)),))
    capped = curve.capped(5)
    assert capped.union == (0.0, 4.0, 5.0)
    assert capped.by_batch[0].union == (5.0,)


@pytest.mark.parametrize(
    ("scores", "acceptances", "sentence"),
    [
        ((0.0, 1.0), (0.0, 1.0), "a row of acceptances for each rank"),
        ((0.0, 0.5), ((0.0, 1.0),), "from 0 to 1"),
        ((0.0, 1.0), ((1.0, 0.0),), "must not fall"),
        ((0.0, 0.5, 0.5, 1.0), ((0.0, 0.1, 0.2, 1.0),), "scores must increase"),
        ((0.0, 1.0), ((0.1, 1.0),), "0 at score 0"),
        ((0.0, 1.0), ((0.0, 1.1),), "1 at most"),
        ((0.0, 1.0), ((0.0, 1.0), (0.0,)), "equally many"),
    ],
)
def test_conditional_curves_that_are_none_are_refused(scores, acceptances, sentence):
    with pytest.raises(ValueError, match=f"conditional.*{sentence}"):
        ConditionalAcceptance(scores, acceptances)


def test_an_acceptance_that_cannot_be_is_refused():
    for rows, per_rank, sentence in (
        (((0.0, 0.5), (0.0, 0.4)), (0.5,), "several rows, and one is read"),
        (((0.0, 0.5),), (0.7, 0.7), "sum to 1 at the most"),
        (((0.0, 0.5),), (-0.1,), "sum to 1 at the most"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Acceptance("code", 1, (0.0, 1.0), rows, per_rank, {})
