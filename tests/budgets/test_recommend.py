"""What is advised for synthetic fronts, in each of its branches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.budgets.frontier import Front, Point, Quality, front_of
from evict_profile.budgets.load import record_of
from evict_profile.budgets.prices import RecordPrices
from evict_profile.budgets.schema import MASS, NONE, ORACLE
from evict_profile.budgets.study import Bounds, judge_unseen, recommend
from evict_profile.errors import ConfigError
from evict_profile.records import replace
from evict_profile.stats import Estimate
from tests.budgets.synthetic import PATH, setting, typical


def about(value, half_width):
    return Estimate(value, value - half_width, value + half_width)


def point(of, speedup=1.0, kl=0.0, agreement=1.0, loss=0.0, accept=1.0):
    """Every interval is 0.01 to either side, KL's and loss's a tenth of it."""
    other = about(1.0, 0.01)
    quality = Quality(about(kl, 0.001), about(agreement, 0.01), about(loss, 0.001))
    return Point(
        setting=of,
        tokens_per_s=other,
        speedup=about(speedup, 0.01),
        committed=other,
        accept_ratio=about(accept, 0.01),
        step_ratio=other,
        earned=about(speedup * min(1.0, 1.0 / accept), 0.01),
        union=other,
        step_us=other,
        verify_us=other,
        predicted_us=other,
        given=quality,
        decoded=quality,
        over_none=quality.excess_loss,
    )


PLAIN = point(setting(NONE))
FAST = point(setting(MASS, 8), 1.5, 0.2, 0.8, 0.1, 0.9)
CLOSE = point(setting(MASS, 16), 1.2, 0.01, 0.995, 0.01, 0.99)
CLOSER = point(setting(PATH, 24), 1.1, 0.005, 0.999, 0.005, 0.999)
HINDSIGHT = point(setting(ORACLE, 8), 1.6, 0.001, 1.0)


def advised(*points, **stated):
    """On a front of these points and `none`."""
    return recommend(Front("code", 24, 1000, (PLAIN, *points)), Bounds(**stated))


def test_the_fastest_that_keeps_the_quality_is_advised():
    """The oracle is faster, and nobody can run it."""
    advice = advised(FAST, CLOSE, CLOSER, HINDSIGHT, agreement=0.98)
    assert (advice.choice, advice.point) == ("take the budget", CLOSE)
    assert advice.kept == ("mass 16", "path 24")
    for part in ("Take mass 16, at 1.20", "(1.19 to 1.21)", "LOSSY"):
        assert part in advice.message


def test_agreement_is_the_default():
    """0.98 where nothing is stated; what is stated stands alone."""
    advice = advised(FAST, CLOSE)
    assert advice.required == Bounds(agreement=0.98)
    assert advice.point == CLOSE
    assert advised(FAST, CLOSE, kl=0.3).required == Bounds(kl=0.3)
    assert advised(FAST, CLOSE, kl=0.3).point == FAST


@pytest.mark.parametrize(
    ("stated", "kept"),
    [
        ({"kl": 0.0111}, True),
        ({"kl": 0.0109}, False),
        ({"agreement": 0.984}, True),
        ({"agreement": 0.986}, False),
        ({"loss": 0.0111}, True),
        ({"loss": 0.0109}, False),
        ({"accept": 0.979}, True),
        ({"accept": 0.981}, False),
        ({"kl": 0.0111, "accept": 0.981}, False),
    ],
)
def test_the_worse_end_of_an_interval_counts(stated, kept):
    """Of every measure that is stated, and of all of them."""
    assert Bounds(**stated).keeps(CLOSE) is kept


def test_text_that_is_easier_to_draft_is_no_speed():
    """A third more tokens a step in steps of the same length bring nothing."""
    easy = point(setting(MASS, 16), 1.3, accept=1.3)
    assert advised(easy, CLOSER).point == CLOSER
    assert advised(easy).choice == "run without"


def test_no_budget_may_keep_the_quality():
    """The closest to the target is named; hindsight is no way out."""
    advice = advised(FAST, HINDSIGHT)
    assert (advice.choice, advice.point) == ("none keeps the quality", FAST)
    assert "mass 8" in advice.message
    advice = advised(HINDSIGHT)
    assert advice.point is None
    assert "no rule that could be deployed" in advice.message


@pytest.mark.parametrize("speed", [1.005, 0.9])
def test_a_budget_may_bring_nothing(speed):
    """Surely slower, or no gain that can be told."""
    advice = advised(point(setting(MASS, 24), speed))
    assert advice.choice == "run without"
    assert "mass 24" in advice.message


def test_what_is_surely_faster_goes_before_what_may_be():
    """A wide interval that holds 1 does not hide a gain."""
    vague = point(setting(MASS, 24), 1.3)
    vague = replace(vague, earned=Estimate(1.3, 0.9, 1.7))
    assert advised(vague, CLOSER).point == CLOSER


def test_advice_is_judged_on_prompts_that_had_no_say(table):
    """Chosen on one half, told with the other's numbers."""
    record = record_of(typical(prompts=12), "synthetic")
    prices = RecordPrices(table, record)
    judged = judge_unseen(record, prices, Bounds(kl=0.06))
    assert judged
    assert judged.point in front_of(record.half(1), prices).points
    assert judged.kept == Bounds(kl=0.06).keeps(judged.point)
    assert judge_unseen(record, prices, Bounds(kl=1e-6)) is None


def test_few_prompts_have_no_second_half(table):
    """Four a half tell nothing."""
    few = record_of(typical(prompts=4), "synthetic")
    assert judge_unseen(few, RecordPrices(table, few), Bounds(kl=0.06)) is None


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"kl": 0.0}, "--kl 0 cannot be; give one above 0"),
        ({"kl": float("nan")}, "--kl nan cannot be"),
        ({"agreement": 98.0}, "--agreement 98 cannot be; give one above 0 and at most"),
        ({"accept": -1.0}, "--accept -1 cannot be"),
        ({"accept": 5.0}, "--accept 5 cannot be; give one above 0 and at most 1"),
        ({"loss": float("inf")}, "--loss inf cannot be"),
    ],
)
def test_bounds_that_cannot_be_are_refused(stated, says):
    with pytest.raises(ConfigError) as no:
        Bounds(**stated)
    assert says in str(no.value)


@given(
    st.lists(
        st.tuples(st.floats(0.5, 2.0), st.floats(0.0, 1.0)), min_size=1, max_size=6
    ),
    st.floats(0.01, 1.0),
)
def test_advice_keeps_what_is_asked(settings, kl):
    """And nothing that keeps it is faster, whatever the front."""
    points = [
        point(setting(MASS, 4 + i), speed, divergence)
        for i, (speed, divergence) in enumerate(settings)
    ]
    advice = advised(*points, kl=kl)
    kept = [p for p in points if p.given.kl.high <= kl]
    if advice.choice == "take the budget":
        assert advice.point in kept
        assert advice.point.earned.value == max(p.earned.value for p in kept)
    else:
        assert not any(p.earned.above_one for p in kept)
