"""Sentences for made-up numbers: the simplest that will do, and how sure that is."""

import pytest

from evict_profile.replay.cell import Place
from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    BEST_WIDTH,
    RATE,
    RATE_DEPTH,
    RATIO,
)
from evict_profile.replay.verdict import judge, overall, percent
from evict_profile.stats import Estimate
from tests.replay.made_up import make_cell


def test_adapting_is_advised_where_it_surely_pays() -> None:
    """Beyond the best fixed setting, with both gains named."""
    verdict = judge(make_cell())
    assert (verdict.choice, verdict.policy) == ("adapt", RATE)
    assert verdict.sure
    assert verdict.gain.value == pytest.approx(1.3)
    assert "+30.0 %" in verdict.says
    assert "+8.3 %" in verdict.says
    assert "the full tree gives 0.80, the fixed setting 1.20" in verdict.says
    assert "set to 0.2 in hindsight, comes to +21.0 %" in verdict.says


def test_a_fixed_width_is_advised_where_it_is_all_it_takes() -> None:
    """With the width to set; the default depth stays where another gains nothing."""
    verdict = judge(make_cell({RATE: 120.9}))
    assert verdict.choice == "fix the width"
    assert verdict.setting
    assert (verdict.setting.width, verdict.setting.depth) == (8, 5)
    assert verdict.says.startswith("Fix the width at 8 and the depth at 5 (code")
    assert "too little to be worth the trouble" in verdict.says


def test_another_depth_is_advised_where_it_pays() -> None:
    """More than a hundredth over the best width at full depth."""
    verdict = judge(make_cell({RATE: 120.0, BEST_PAIR: 125.0}))
    assert verdict.setting
    assert (verdict.setting.width, verdict.setting.depth) == (6, 3)


def test_a_difference_that_cannot_be_told_is_said_to_be_none() -> None:
    """Eight per cent, give or take ten."""
    verdict = judge(make_cell(doubt=0.1))
    assert verdict.choice == "fix the width"
    assert not verdict.sure
    assert "no difference that can be told" in verdict.says


def test_speculation_is_advised_against_where_plain_decoding_is_faster() -> None:
    """With what hindsight would make of it."""
    slow = dict.fromkeys((BEST_WIDTH, BEST_PAIR, RATE), 90.0)
    verdict = judge(make_cell(slow))
    assert (verdict.choice, verdict.policy) == ("do not speculate", AR)
    assert verdict.sure
    assert "-10.0 %" in verdict.says
    assert "surely slower" in verdict.says
    assert "with hindsight it would be +100.0 %" in verdict.says


def test_few_prompts_advise_nothing_and_say_so() -> None:
    """Intervals are unbounded."""
    verdict = judge(make_cell(doubt=float("inf"), prompts=3))
    assert verdict.choice == "do not speculate"
    assert not verdict.sure
    assert "3 prompts are too few" in verdict.says


def test_of_policies_alike_the_simplest_is_advised() -> None:
    """Within a hundredth of the best; the ratio needs no past."""
    assert judge(make_cell({RATIO: 129.5})).policy == RATIO
    assert judge(make_cell({RATIO: 125.0})).policy == RATE
    assert judge(make_cell({RATE_DEPTH: 130.5})).policy == RATE
    assert judge(make_cell({RATE_DEPTH: 140.0})).policy == RATE_DEPTH


def test_adapting_can_pay_where_no_fixed_width_does() -> None:
    """Beyond plain decoding for sure, beyond the fixed setting perhaps."""
    verdict = judge(make_cell({BEST_WIDTH: 100.0, BEST_PAIR: 100.5, RATE: 102.0}))
    assert verdict.choice == "adapt"


def test_overall_says_where_and_how_much() -> None:
    """One sentence an advice."""
    slow = dict.fromkeys((BEST_WIDTH, BEST_PAIR, RATE), 90.0)
    verdicts = [
        judge(make_cell()),
        judge(make_cell({RATE: 150.0}, place=Place("prose", 0.0, 1))),
        judge(make_cell(slow, place=Place("code", 0.0, 16))),
    ]
    says = overall(verdicts)
    assert "Adapt in 2 of 3 places (code, temperature 0, batch 1; prose" in says
    assert "+30 to +50 % against plain decoding" in says
    assert "Do not speculate in 1 of 3 places (code, temperature 0, batch 16)." in says


def test_overall_of_one_place_is_short() -> None:
    """And says what the data do not tell."""
    assert overall([judge(make_cell())]) == (
        "Adapt in the one place replayed: +30 % against plain decoding."
    )
    assert "do not tell" in overall([judge(make_cell(doubt=0.1))])


def test_percent_names_the_interval_if_there_is_one() -> None:
    """A change, not a ratio."""
    assert percent(Estimate(1.1, 1.05, 1.2)) == "+10.0 % (+5.0 to +20.0)"
    assert percent(Estimate(0.9, float("-inf"), float("inf"))) == "-10.0 %"
