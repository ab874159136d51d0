"""Runs are grouped by what they ran, and ratios are taken text by text."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.errors import ConfigError
from evict_profile.records import replace
from evict_profile.served.setting import (
    ONE_RUN_SD,
    TWO_SIDED,
    check_repeats,
    settings_of,
)
from tests.served.runs import rows, run

STEPS = st.floats(1.0, 100.0)


def ratio_of(*runs):
    plain, drafting = settings_of(runs)
    return drafting.ratio_to(plain)


def test_each_batch_draft_and_context_is_a_setting():
    near = [run(context=c) for c in (1000.0, 1100.0, 8000.0)]
    found = settings_of([*near, run(4), run(1, 3), run(1, 3, step_ms=None)])
    shown = [(each.batch, each.drafts, len(each.runs)) for each in found]
    assert shown == [(1, 3, 1), (1, 0, 2), (1, 0, 1), (4, 0, 1)]


@given(STEPS, STEPS)
def test_the_step_is_the_geometric_mean(one, other):
    [found] = settings_of(rows(f"1,0,{one}|1,0,{other}"))
    assert found.step_us.value == pytest.approx(1e3 * math.sqrt(one * other))
    half = math.log(found.step_us.high / found.step_us.value)
    assert half == pytest.approx(TWO_SIDED * ONE_RUN_SD / math.sqrt(2))


def test_parts_of_one_log_are_one_start_of_a_server():
    """Their spread of 1 % is not that of starts."""
    parts = [
        replace(run(step_ms=ms), source=f"a.log, server 1, 1 running, part {n}")
        for n, ms in enumerate((10.0, 10.1, 9.9, 10.0))
    ]
    (one,), (two,) = settings_of(parts), settings_of([*parts, run(step_ms=10.0)])
    start = TWO_SIDED * ONE_RUN_SD
    half = math.log(one.step_us.high / one.step_us.value)
    assert start < half < 1.1 * start
    assert math.log(two.step_us.high / two.step_us.value) < half


@given(STEPS, STEPS)
def test_a_ratio_is_the_inverse_of_the_other(one, other):
    plain, drafting = settings_of(rows(f"1,0,{one}|1,3,{other}"))
    forth, back = drafting.ratio_to(plain), plain.ratio_to(drafting)
    assert forth.value == pytest.approx(1.0 / back.value)
    assert forth.low == pytest.approx(1.0 / back.high)


def test_the_spread_of_runs_that_repeat_is_their_interval():
    steady = ratio_of(*rows("1,0,10|1,0,10.1|1,0,9.9|1,3,20|1,3,20.1|1,3,19.9"))
    noisy = ratio_of(*rows("1,0,10|1,0,14|1,0,7|1,3,20|1,3,20.1|1,3,19.9"))
    assert steady.high / steady.low < 1.1
    assert noisy.high / noisy.low > 1.5


def test_texts_are_compared_with_themselves():
    """Steps of two texts differ by 2, and the ratio of each text is 2."""
    runs = [
        run(1, k, step * (2 if k else 1), text=text)
        for text, step in (("code", 10.0), ("chat", 20.0))
        for k in (0, 3)
    ]
    ratio = ratio_of(*runs)
    assert ratio.value == pytest.approx(2.0)
    assert ratio.high < 2.4


def test_texts_that_differ_widen_the_interval():
    def of_texts(ratios):
        pairs = zip(("a", "b", "c"), ratios, strict=True)
        return ratio_of(
            *(
                run(1, k, 10.0 * (ratio if k else 1.0), text=text)
                for text, ratio in pairs
                for k in (0, 3)
            )
        )

    assert of_texts((1.5, 2.0, 2.7)).high > 1.5 * of_texts((2.0, 2.0, 2.0)).high


def test_two_runs_that_lie_apart_are_of_several_servers():
    [apart] = settings_of(rows("1,3,10|1,3,20"))
    with pytest.raises(ConfigError, match=r"10.00 and 20.00 ms, as of several servers"):
        check_repeats(apart)
    [texts] = settings_of([run(1, 3, 10.0, text="a"), run(1, 3, 20.0, text="b")])
    check_repeats(texts)


def test_several_noisy_runs_are_one_setting():
    [noisy] = settings_of(rows("1,3,10|1,3,20|1,3,12|1,3,17"))
    check_repeats(noisy)
    assert noisy.step_us.high / noisy.step_us.low > 1.5
