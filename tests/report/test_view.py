"""Derived values and units."""

import pytest

from evict_profile.report.view import View, unit_for


@pytest.mark.parametrize(
    ("microseconds", "said"),
    [(850.0, "850 us"), (3_140.0, "3.14 ms"), (402_000.0, "402 ms"), (2.6e7, "26.0 s")],
)
def test_unit_keeps_numbers_short(microseconds: float, said: str) -> None:
    """Three digits in the unit that suits."""
    assert unit_for(microseconds).of(microseconds) == said


def test_ratios_begin_at_one(view: View) -> None:
    """The smallest width is the measure of the others, and surely itself."""
    first, *rest = view.ratios
    assert (first.times, first.times_low, first.times_high) == (1.0, 1.0, 1.0)
    assert all(r.times_low <= r.times <= r.times_high for r in rest)


def test_ratio_is_that_of_the_staircase(view: View) -> None:
    """Headline and table say the same."""
    step_us = view.table.step_cost_us(view.batch, view.context)
    widest = view.ratios[-1]
    expected = step_us[widest.width] / step_us[1]
    assert widest.times == pytest.approx(expected, rel=1e-3)


def test_anchor_rows_are_in_the_order_measured(view: View) -> None:
    """One row a round."""
    assert view.anchor_rows["round"].is_monotonic_increasing
    assert len(view.anchor_rows) == view.timed["round"].nunique()
