"""What the cost report computes from samples and fits."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from evict_profile.fit.points import HeldOut
from evict_profile.report.data import View
from evict_profile.report.numbers import MS


def test_a_prediction_below_what_was_measured_is_a_negative_residual(view):
    latency = np.array([10.0, 10.0])
    unseen = HeldOut(pd.DataFrame({"latency_us": latency}), np.array([10.1, 8.0]))
    fitted = replace(view.fitted)
    vars(fitted)["held_out"] = {"hinge": unseen}
    assert View(fitted, view.table).residuals == pytest.approx([0.01, -0.2])


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [(850.0, "0.850 ms"), (3_140.0, "3.14 ms"), (2.6e7, "26,000 ms")],
)
def test_a_latency_is_in_milliseconds_of_three_digits(microseconds, text):
    assert MS.of(microseconds) == text


def test_the_growth_is_that_of_the_staircase(view):
    context, batch = view.place
    step_us = view.table.step_cost_us(batch, context)
    expected = step_us[view.forced[-1].width * batch] / step_us[batch]
    assert view.growth.value == pytest.approx(expected, rel=1e-3)
    assert view.growth.low < view.growth.value < view.growth.high


def test_a_band_contains_its_line(view):
    widths = np.array([1.0, 4.0])
    us, (low, high) = view.layers_us(widths, view.unions(widths))
    assert (low < us).all() and (us < high).all()


def test_the_anchor_has_a_row_a_round_in_order(view):
    assert view.anchor_rows["round"].is_monotonic_increasing
    assert len(view.anchor_rows) == view.timed["round"].nunique()
