"""What the cost report computes from samples and fits."""

import math
from dataclasses import replace

import numpy as np
import pytest

from evict_profile.cells import Cell
from evict_profile.fit.baselines import HeldOutPredictions
from evict_profile.fit.points import Points
from evict_profile.report.data import (
    find_dips,
    find_misses,
    find_split_ratios,
    implied_gbps,
)
from evict_profile.report.numbers import unit_for
from evict_profile.stats import Estimate
from tests.factories import EXPERT_US, UNEVEN

AT_2 = Cell("layers", 2, 8, 64, 1, "balanced")
AT_4 = replace(AT_2, width=4)
AT_8 = replace(AT_2, width=8)
ROUTED_2, ROUTED_4 = (replace(c, union=0, split="natural") for c in (AT_2, AT_4))


def near(median, half_width=1.0):
    return Estimate(median, median - half_width, median + half_width)


TOO_FEW_SAMPLES = Estimate(20.0, -math.inf, math.inf)


def test_a_wider_cell_that_is_surely_cheaper_is_a_dip():
    (dip,) = find_dips({AT_2: near(20), AT_4: near(10)})
    assert (dip.narrow, dip.wide, dip.change) == (AT_2, AT_4, -0.5)


def test_a_wide_cell_is_listed_once_against_the_dearest():
    (dip,) = find_dips({AT_2: near(40), AT_4: near(30), AT_8: near(10, 5)})[:1]
    assert (dip.narrow, dip.wide) == (AT_2, AT_8)


@pytest.mark.parametrize(
    "intervals",
    [
        pytest.param({AT_2: near(10), AT_4: near(20)}, id="rising"),
        pytest.param({AT_2: near(11), AT_4: near(10)}, id="intervals overlap"),
        pytest.param({AT_2: TOO_FEW_SAMPLES, AT_4: near(1)}, id="no interval"),
        pytest.param({ROUTED_2: near(20), ROUTED_4: near(10)}, id="the union moves"),
        *(
            pytest.param({AT_2: near(20), other: near(10)}, id=str(other))
            for other in (
                replace(AT_4, union=16),
                replace(AT_4, context=128),
                replace(AT_4, batch=2),
                replace(AT_4, split="skewed"),
                replace(AT_4, part="non_moe", split="natural"),
            )
        ),
    ],
)
def test_anything_else_is_no_dip(intervals):
    assert find_dips(intervals) == []


def test_misses_begin_with_the_worst_of_either_sign():
    latency = np.array([10.0, 10.0, 10.0])
    points = Points((AT_2, AT_4, AT_8), latency, latency)
    found = find_misses(HeldOutPredictions(points, np.array([10.1, 8.0, 11.0])))
    assert [miss.cell for miss in found] == [AT_4, AT_8, AT_2]
    assert found[0].residual == pytest.approx(-0.2)


def test_a_split_ratio_needs_both_splits():
    skewed = replace(AT_2, split="skewed")
    assert find_split_ratios({skewed: near(20)}) == {}
    assert find_split_ratios({skewed: near(20), AT_2: near(10)}) == {8: [2.0]}


def test_uneven_splits_cost_what_they_were_made_to(rich_view):
    found = find_split_ratios(rich_view.medians)
    assert len(found) > 1
    for ratios in found.values():
        assert np.median(ratios) == pytest.approx(UNEVEN, rel=0.01)


def test_bandwidth_is_bytes_over_slope(view):
    """The known cost of an expert is found again as a bandwidth."""
    known = view.table.model.bytes_per_expert / EXPERT_US / 1e3
    slope = view.us_per_expert(max(view.widths))
    assert slope
    widest = implied_gbps(slope, view.table.model.bytes_per_expert)
    assert widest and widest.value == pytest.approx(known, rel=0.1)
    assert widest.low <= widest.value <= widest.high


def test_time_that_does_not_follow_the_union_implies_no_bandwidth():
    assert implied_gbps(Estimate(0.0, 0.0, 1.0), 1000) is None


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [(850.0, "850 us"), (3_140.0, "3.14 ms"), (402_000.0, "402 ms"), (2.6e7, "26.0 s")],
)
def test_a_unit_keeps_numbers_short(microseconds, text):
    assert unit_for(microseconds).of(microseconds) == text


def test_ratios_begin_at_one(view):
    first, *rest = (ratio.times for ratio in view.ratios)
    assert (first.value, first.low, first.high) == (1.0, 1.0, 1.0)
    assert all(times.low <= times.value <= times.high for times in rest)


def test_a_ratio_is_that_of_the_staircase(view):
    step_us = view.table.step_cost_us(view.batch, view.context)
    widest = view.ratios[-1]
    expected = step_us[widest.width] / step_us[1]
    assert widest.times.value == pytest.approx(expected, rel=1e-3)


def test_the_anchor_has_a_row_a_round_in_order(view):
    assert view.anchor_rows["round"].is_monotonic_increasing
    assert len(view.anchor_rows) == view.timed["round"].nunique()
