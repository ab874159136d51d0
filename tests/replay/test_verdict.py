"""Verdicts on given numbers: the simplest policy that will do, and how sure that is."""

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.replay.comparison import percent, summary
from evict_profile.replay.policies import (
    AR,
    BEST_PAIR,
    BEST_WIDTH,
    PAIR_CONDITIONAL,
    RATE,
    RATE_DEPTH,
    RATIO,
    SCHEDULE,
)
from evict_profile.stats import WORTHWHILE, Estimate
from tests.replay.comparisons import make_comparison

SLOW = dict.fromkeys((BEST_WIDTH, BEST_PAIR, RATE), 90.0)
FAST = dict.fromkeys((BEST_WIDTH, BEST_PAIR, RATE), 250.0)
NEAR = {BEST_WIDTH: 100.0, BEST_PAIR: 100.5}
ADAPT, FIX, STOP = "adapt", "fix a setting", "do not speculate"


@pytest.mark.parametrize(
    ("speeds", "doubt", "choice", "policy", "sure"),
    [
        # Beyond the best fixed setting, surely.
        ({}, 0.005, ADAPT, RATE, True),
        # A fixed width is all it takes; another depth, where it gains a per cent.
        ({RATE: 120.3}, 0.005, FIX, BEST_WIDTH, True),
        ({RATE: 120.0, BEST_PAIR: 125.0}, 0.005, FIX, BEST_PAIR, True),
        # Of settings that know no cost the strongest counts, whatever its kind.
        ({PAIR_CONDITIONAL: 130.0}, 0.005, FIX, PAIR_CONDITIONAL, True),
        ({PAIR_CONDITIONAL: 125.0}, 0.005, ADAPT, RATE, True),
        # Eight per cent, give or take ten, decides nothing.
        ({}, 0.1, FIX, BEST_WIDTH, False),
        (SLOW, 0.005, STOP, AR, True),
        ({}, math.inf, STOP, AR, False),
        # Beyond plain decoding for sure, beyond the fixed setting perhaps.
        (NEAR | {RATE: 102.0}, 0.005, ADAPT, RATE, True),
        # Of policies within one per cent of the fastest the simplest.
        ({RATIO: 129.5}, 0.005, ADAPT, RATIO, True),
        ({RATIO: 125.0}, 0.005, ADAPT, RATE, True),
        ({RATE_DEPTH: 130.5}, 0.005, ADAPT, RATE, True),
        ({RATE_DEPTH: 140.0}, 0.005, ADAPT, RATE_DEPTH, True),
    ],
)
def test_the_simplest_policy_that_pays_is_advised(speeds, doubt, choice, policy, sure):
    verdict = make_comparison(speeds, doubt)
    advised = verdict.advised.policy
    assert (verdict.choice, advised, verdict.sure) == (choice, policy, sure)


def test_a_verdict_states_its_ratios():
    verdict = make_comparison()
    assert verdict.adaptive_over_fixed.value == pytest.approx(1.3 / 1.2)
    assert "adapt with “rate”" in str(verdict)
    assert (
        "fix a setting, best fixed width (8 tokens at depth 5); not settled whether "
        "adapting beats a fixed setting." in str(make_comparison(doubt=0.1))
    )


def test_a_setting_without_flags_is_named_as_one():
    found = make_comparison({RATE: 120.0, PAIR_CONDITIONAL: 125.0})
    said = "fix a setting, best fixed pair, conditional, which no flag sets."
    assert said in str(found)


def test_a_schedule_says_what_writes_one():
    found = make_comparison({RATE: 120.0, SCHEDULE: 150.0})
    said = "schedule by batch, which no flag sets; export writes one of chains."
    assert said in str(found)


def test_an_adaptive_policy_is_named_with_or_without_a_plug_in():
    found = make_comparison()
    assert "adapt with “rate”, which no plug-in does." in str(found)
    served = replace(found, adaptive=replace(found.adaptive, served_by="--flags"))
    assert "adapt with “rate”. " in str(served)


def test_the_summary_counts_choices_and_their_gains():
    speeds = ({}, {RATE: 150.0}, SLOW)
    assert summary([make_comparison(each) for each in speeds]) == (
        "Adapt in 2 of 3 scenarios: rate at batch 1; +30 to +50 % against plain "
        "decoding. Do not speculate in 1 of 3 scenarios: batch 1."
    )
    assert summary([make_comparison(doubt=0.1)]) == (
        "Fix a setting in 1 of 1 scenarios: best fixed width (8 tokens at depth 5) at "
        "batch 1; +20 % against plain decoding; not settled whether adapting beats a "
        "fixed setting."
    )
    assert summary([make_comparison(doubt=math.inf)]) == (
        "Not settled whether drafting pays in 1 of 1 scenarios: batch 1."
    )
    assert percent(Estimate(1.1, 1.05, 1.2)) == "+10.0 % (+5.0 to +20.0)"
    assert percent(Estimate(0.9, -math.inf, math.inf)) == "-10.0 %"


def test_each_sentence_of_a_summary_begins_with_what_to_do():
    adapts = make_comparison(NEAR | {RATE: 102.2, BEST_WIDTH: 101.5}, doubt=0.0199)
    fixes = make_comparison(doubt=0.1)
    assert adapts.choice == ADAPT and adapts.unsettled
    assert summary([adapts, fixes]) == (
        "Adapt in 1 of 2 scenarios: rate at batch 1; +2 % against plain decoding; not "
        "settled whether adapting beats a fixed setting. Fix a setting in 1 of 2 "
        "scenarios: best fixed width (8 tokens at depth 5) at batch 1; +20 % against "
        "plain decoding; not settled whether adapting beats a fixed setting."
    )


def test_no_choice_is_sure_where_drafting_is_assumed():
    """Whatever the intervals say; the verdict and the headline say why."""
    verdict = make_comparison(assumptions=("a level takes 9 us",))
    assert verdict.settled and not verdict.sure
    assert str(verdict).endswith(" Assumed: a level takes 9 us.")
    assert summary([verdict]).endswith("Drafting is assumed, so no choice is sure.")


@pytest.mark.parametrize(
    ("speeds", "question"),
    [(FAST, "whether adapting beats a fixed setting"), (SLOW, "whether drafting pays")],
)
def test_an_estimated_table_settles_nothing_and_its_error_is_in_the_sentence(
    speeds, question
):
    estimates = [
        make_comparison(speeds, estimate=ends) for ends in ((0.7, 1.3), (0.8, 2))
    ]
    assert not any(each.settled or each.sure for each in estimates)
    error = "its error of -30 to +100 % (95 %) is in no interval here"
    assert f"ot settled {question}" in summary(estimates)
    assert error in summary(estimates)
    assert "its error of -30 to +30 %" in str(estimates[0])
    assert "advise averages kernels with steps of other servers" in str(estimates[0])


@pytest.mark.parametrize(("gain", "choice"), [(1.02, STOP), (1.3, STOP), (1.6, FIX)])
def test_a_gain_within_the_error_of_an_estimate_is_not_settled(gain, choice):
    speeds = dict.fromkeys((BEST_WIDTH, BEST_PAIR, RATE), 100.0 * gain)
    measured = make_comparison(speeds)
    found = make_comparison(speeds, estimate=(0.65, 1.55))
    assert (measured.choice, found.choice) == (FIX, choice)
    assert ("ot settled whether drafting pays" in str(found)) == (choice == STOP)


ENDS = st.tuples(*[st.floats(0.5, 1.5)] * 3).map(sorted)


@given(fixed=ENDS, adaptive=ENDS, beats=ENDS)
def test_nothing_is_certain_that_an_interval_leaves_open(fixed, adaptive, beats):
    """Above 1 it pays, below one per cent it does not; of both questions."""
    fixed, adaptive, beats = (
        Estimate(value, low, high) for low, value, high in (fixed, adaptive, beats)
    )
    made = make_comparison()
    strongest, rate = made.strongest, made.adaptive
    found = replace(
        made,
        strongest=replace(strongest, over=strongest.over | {AR: fixed}),
        adaptive=replace(rate, over={AR: adaptive, strongest.policy: beats}),
    )
    said = found.advice, summary([found])
    assert all(("ot settled" in each) == (not found.settled) for each in said)
    if any("o not speculate" in each for each in said):
        assert max(fixed.high, adaptive.high) < WORTHWHILE
    elif "adapt with" in found.advice:
        assert adaptive.low > 1.0
        sure = beats.low > 1.0 or fixed.high < WORTHWHILE
        assert sure or "not settled whether adapting beats" in found.advice
    elif "fix a setting" in found.advice:
        assert fixed.low > 1.0
        assert beats.high < WORTHWHILE or "not settled" in found.advice
    else:
        assert found.advice == "not settled whether drafting pays"


def _steps(result, *values):
    """The result with these committed tokens, us, levels and us of drafting a step."""
    exactly = [Estimate(value, value, value) for value in values]
    names = "committed", "step_us", "depth", "draft_us"
    return replace(result, **dict(zip(names, exactly, strict=True)))


@given(
    fixed=st.tuples(st.floats(1.5, 4.0), st.floats(2e3, 2e4), st.floats(1.0, 3.0)),
    gain=st.floats(1.02, 1.4),
    levels=st.floats(1.2, 3.0),
)
def test_at_the_break_even_drafting_both_are_equally_fast(fixed, gain, levels):
    (c, s, d), more = fixed, levels
    adaptive = (c * gain * more, s * more, d * more * gain * 1.5)
    made = make_comparison()
    strongest = _steps(made.strongest, c, s, d, 100.0 * d)
    own = _steps(made.adaptive, *adaptive, 100.0 * adaptive[2])
    found = replace(made, strongest=strongest, adaptive=own)
    [sentence] = [x for x in found.break_even if "Adapting" in x]
    limit_us = 1e3 * float(re.search(r"more than ([\d.]+) ms", sentence)[1])
    level_us = limit_us / adaptive[2] - 100.0
    rates = [t / (u + level_us * n) for t, u, n in ((c, s, d), adaptive)]
    assert rates[1] == pytest.approx(rates[0], rel=0.02)


def test_speculation_pays_up_to_the_committed_tokens():
    """A setting that drafts nothing has no break-even."""
    made = make_comparison()
    drafting = _steps(made.strongest, 2.5, made.of(AR).step_us.value, 3.0, 0.0)
    [says, *_] = replace(made, strongest=drafting).break_even
    assert "takes more than 2.50 plain steps (estimated 1.00)" in says
    idle = replace(made, strongest=_steps(made.strongest, 1.0, 4.0, 0.0, 0.0))
    assert not any("Speculation" in each for each in idle.break_even)
