"""What the cost report computes from samples and fits."""

import math
from dataclasses import replace

import numpy as np
import pytest

from evict_profile.cells import Cell
from evict_profile.fit.baselines import HeldOutPredictions
from evict_profile.fit.hinge import Points
from evict_profile.report.data import (
    View,
    find_dips,
    find_misses,
    find_split_ratios,
    implied_bandwidth,
)
from evict_profile.report.numbers import unit_for
from evict_profile.stats import MedianInterval
from tests.factories import EXPERT_US, UNEVEN

AT_2 = Cell("layers", 2, 8, 64, 1, "balanced")
AT_4 = replace(AT_2, width=4)
AT_8 = replace(AT_2, width=8)


def near(median: float, half_width: float = 1.0) -> MedianInterval:
    """A median with its interval."""
    return MedianInterval(median, median - half_width, median + half_width, 8)


def test_rising_costs_have_no_dip() -> None:
    """More tokens for more time is what is expected."""
    assert find_dips({AT_2: near(10), AT_4: near(20), AT_8: near(30)}) == ()


def test_dip_beyond_both_intervals_is_told() -> None:
    """A wider cell that is surely cheaper is told with its change."""
    (dip,) = find_dips({AT_2: near(20), AT_4: near(10)})
    assert (dip.narrow, dip.wide) == (AT_2, AT_4)
    assert dip.change == -0.5


def test_dip_within_intervals_is_noise() -> None:
    """Overlapping intervals do not make a dip."""
    assert find_dips({AT_2: near(11), AT_4: near(10)}) == ()


def test_wide_cell_is_told_once_against_the_dearest() -> None:
    """Cells between the two add nothing."""
    (dip,) = find_dips({AT_2: near(40), AT_4: near(30), AT_8: near(10, 5)})[:1]
    assert (dip.narrow, dip.wide) == (AT_2, AT_8)


@pytest.mark.parametrize(
    "other",
    [
        replace(AT_4, union=16),
        replace(AT_4, context=128),
        replace(AT_4, batch=2),
        replace(AT_4, split="skewed"),
        replace(AT_4, part="non_moe", split="natural"),
    ],
)
def test_cells_that_differ_elsewhere_are_not_compared(other: Cell) -> None:
    """Only n may differ."""
    assert find_dips({AT_2: near(20), other: near(10)}) == ()


def test_natural_layers_are_not_compared() -> None:
    """Their union moves with n, so a dip would say nothing of n."""
    natural = [replace(c, union=0, split="natural") for c in (AT_2, AT_4)]
    assert find_dips({natural[0]: near(20), natural[1]: near(10)}) == ()


def test_few_samples_never_make_a_dip() -> None:
    """Fewer than six samples have no interval to be apart."""
    unknown = MedianInterval(20.0, -math.inf, math.inf, 3)
    assert find_dips({AT_2: unknown, AT_4: near(1)}) == ()


def test_misses_begin_with_the_worst() -> None:
    """Size counts, not sign."""
    latency = np.array([10.0, 10.0, 10.0])
    points = Points((AT_2, AT_4, AT_8), latency, latency)
    found = find_misses(HeldOutPredictions(points, np.array([10.1, 8.0, 11.0])))
    assert [miss.cell for miss in found] == [AT_4, AT_8, AT_2]
    assert found[0].residual == pytest.approx(-0.2)


def test_split_ratio_needs_both_splits() -> None:
    """A skewed cell without its balanced twin has no ratio."""
    skewed = replace(AT_2, split="skewed")
    assert find_split_ratios({skewed: near(20)}) == ()
    (ratio,) = find_split_ratios({skewed: near(20), AT_2: near(10)})
    assert ratio.ratio.value == 2.0
    assert ratio.ratio.low < 2.0 < ratio.ratio.high


def test_bandwidth_is_bytes_over_slope(view: View) -> None:
    """The made-up cost of an expert is found again as a bandwidth."""
    truth = view.table.model.bytes_per_expert / EXPERT_US / 1e3
    widest = view.bandwidths[-1].gbps
    assert widest.value == pytest.approx(truth, rel=0.1)
    assert widest.low <= widest.value <= widest.high


def test_flat_cost_implies_no_bandwidth() -> None:
    """Time that does not follow the union is not divided by."""
    assert not list(implied_bandwidth(16, 4, [0.0, 1.0], 1000))


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [(850.0, "850 us"), (3_140.0, "3.14 ms"), (402_000.0, "402 ms"), (2.6e7, "26.0 s")],
)
def test_unit_keeps_numbers_short(microseconds: float, text: str) -> None:
    """Three digits in the unit that suits."""
    assert unit_for(microseconds).of(microseconds) == text


def test_ratios_begin_at_one(view: View) -> None:
    """The smallest width is the measure of the others, and surely itself."""
    first, *rest = (ratio.times for ratio in view.ratios)
    assert (first.value, first.low, first.high) == (1.0, 1.0, 1.0)
    assert all(times.low <= times.value <= times.high for times in rest)


def test_ratio_is_that_of_the_staircase(view: View) -> None:
    """Headline and table say the same."""
    step_us = view.table.step_cost_us(view.batch, view.context)
    widest = view.ratios[-1]
    expected = step_us[widest.width] / step_us[1]
    assert widest.times.value == pytest.approx(expected, rel=1e-3)


def test_anchor_rows_are_in_the_order_measured(view: View) -> None:
    """One row a round."""
    assert view.anchor_rows["round"].is_monotonic_increasing
    assert len(view.anchor_rows) == view.timed["round"].nunique()


def test_uneven_splits_cost_what_they_were_made_to(rich_view: View) -> None:
    """A tenth more, within every interval."""
    assert rich_view.split_ratios
    for each in rich_view.split_ratios:
        assert each.ratio.low < UNEVEN < each.ratio.high
