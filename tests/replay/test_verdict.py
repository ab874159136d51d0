"""Verdicts on given numbers: the simplest policy that will do, and how sure that is."""

import pytest

from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    BEST_WIDTH,
    RATE,
    RATE_DEPTH,
    RATIO,
)
from evict_profile.replay.verdict import judge, percent, summary
from evict_profile.stats import Estimate
from tests.replay.comparisons import make_comparison


def test_adapting_is_advised_where_it_surely_pays() -> None:
    """Beyond the best fixed setting, with all throughputs compared."""
    verdict = judge(make_comparison())
    assert (verdict.choice, verdict.policy) == ("adapt", RATE)
    assert (verdict.sure, verdict.setting) == (True, None)
    assert verdict.gain == verdict.adaptive_over_plain
    assert verdict.adaptive_over_plain.value == pytest.approx(1.3)
    assert verdict.fixed_over_plain.value == pytest.approx(1.2)
    assert verdict.adaptive_over_fixed.value == pytest.approx(1.3 / 1.2)
    assert "adapt with “rate”" in str(verdict)


def test_a_fixed_width_is_advised_where_it_is_all_it_takes() -> None:
    """With the width to set; the default depth stays where another gains nothing."""
    verdict = judge(make_comparison({RATE: 120.3}))
    assert verdict.choice == "fix the width"
    assert verdict.setting
    assert (verdict.setting.width, verdict.setting.depth) == (8, 5)
    assert verdict.gain == verdict.fixed_over_plain
    assert verdict.sure
    assert "fix the width, 8 tokens at depth 5" in str(verdict)


def test_another_depth_is_advised_where_it_pays() -> None:
    """More than one per cent over the best width at full depth."""
    verdict = judge(make_comparison({RATE: 120.0, BEST_PAIR: 125.0}))
    assert verdict.setting
    assert (verdict.setting.width, verdict.setting.depth) == (6, 3)


def test_a_difference_within_the_interval_decides_nothing() -> None:
    """Eight per cent, give or take ten."""
    verdict = judge(make_comparison(doubt=0.1))
    assert verdict.choice == "fix the width"
    assert not verdict.sure
    assert "within the intervals" in str(verdict)


def test_speculation_is_advised_against_where_plain_decoding_is_faster() -> None:
    """Ten per cent slower, for sure."""
    slow = dict.fromkeys((BEST_WIDTH, BEST_PAIR, RATE), 90.0)
    verdict = judge(make_comparison(slow))
    assert (verdict.choice, verdict.policy) == ("do not speculate", AR)
    assert verdict.sure
    assert verdict.gain.value == 1.0
    assert verdict.fixed_over_plain.value == pytest.approx(0.9)


def test_unbounded_intervals_advise_nothing() -> None:
    """As of too few prompts."""
    verdict = judge(make_comparison(doubt=float("inf"), prompts=3))
    assert verdict.choice == "do not speculate"
    assert not verdict.sure


def test_of_policies_alike_the_simplest_is_advised() -> None:
    """Within one per cent of the fastest; the ratio needs no past."""
    assert judge(make_comparison({RATIO: 129.5})).policy == RATIO
    assert judge(make_comparison({RATIO: 125.0})).policy == RATE
    assert judge(make_comparison({RATE_DEPTH: 130.5})).policy == RATE
    assert judge(make_comparison({RATE_DEPTH: 140.0})).policy == RATE_DEPTH


def test_adapting_can_pay_where_no_fixed_width_does() -> None:
    """Beyond plain decoding for sure, beyond the fixed setting perhaps."""
    speeds = {BEST_WIDTH: 100.0, BEST_PAIR: 100.5, RATE: 102.0}
    assert judge(make_comparison(speeds)).choice == "adapt"


def test_the_summary_counts_choices_and_their_gains() -> None:
    """One sentence a choice."""
    slow = dict.fromkeys((BEST_WIDTH, BEST_PAIR, RATE), 90.0)
    verdicts = [
        judge(make_comparison()),
        judge(make_comparison({RATE: 150.0})),
        judge(make_comparison(slow)),
    ]
    assert summary(verdicts) == (
        "Adapt in 2 of 3 scenarios: +30 to +50 % against plain decoding. "
        "Do not speculate in 1 of 3 scenarios."
    )
    assert "do not settle" in summary([judge(make_comparison(doubt=0.1))])


def test_percent_names_the_interval_if_there_is_one() -> None:
    """A change, not a ratio."""
    assert percent(Estimate(1.1, 1.05, 1.2)) == "+10.0 % (+5.0 to +20.0)"
    assert percent(Estimate(0.9, float("-inf"), float("inf"))) == "-10.0 %"
