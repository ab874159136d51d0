"""Findings from plain values."""

import math
from dataclasses import replace

import numpy as np
import pytest

from evict_profile.cells import Cell
from evict_profile.fit.baselines import HeldOut
from evict_profile.fit.hinge import CostModel, Points
from evict_profile.report.findings import (
    dips,
    implied_bandwidth,
    misses,
    split_ratios,
)
from evict_profile.report.view import View
from evict_profile.stats import MedianInterval

AT_2 = Cell("layers", 2, 8, 64, 1, "balanced")
AT_4 = replace(AT_2, width=4)
AT_8 = replace(AT_2, width=8)


def near(median: float, half_width: float = 1.0) -> MedianInterval:
    """A median with its interval."""
    return MedianInterval(median, median - half_width, median + half_width, 8)


def test_rising_costs_have_no_dip() -> None:
    """More tokens for more time is what is expected."""
    assert dips({AT_2: near(10), AT_4: near(20), AT_8: near(30)}) == ()


def test_dip_beyond_both_intervals_is_told() -> None:
    """A wider cell that is surely cheaper is told with its change."""
    (dip,) = dips({AT_2: near(20), AT_4: near(10)})
    assert (dip.narrow, dip.wide) == (AT_2, AT_4)
    assert dip.change == -0.5


def test_dip_within_intervals_is_noise() -> None:
    """Overlapping intervals do not make a dip."""
    assert dips({AT_2: near(11), AT_4: near(10)}) == ()


def test_wide_cell_is_told_once_against_the_dearest() -> None:
    """Cells between the two add nothing."""
    (dip,) = dips({AT_2: near(40), AT_4: near(30), AT_8: near(10, 5)})[:1]
    assert (dip.narrow, dip.wide) == (AT_2, AT_8)


@pytest.mark.parametrize(
    "other",
    [
        replace(AT_4, union=16),
        replace(AT_4, context=128),
        replace(AT_4, batch=2),
        replace(AT_4, split="skewed"),
        replace(AT_4, part="ends", split="natural"),
    ],
)
def test_cells_that_differ_elsewhere_are_not_compared(other: Cell) -> None:
    """Only n may differ."""
    assert dips({AT_2: near(20), other: near(10)}) == ()


def test_natural_layers_are_not_compared() -> None:
    """Their union moves with n, so a dip would say nothing of n."""
    natural = [replace(c, union=0, split="natural") for c in (AT_2, AT_4)]
    assert dips({natural[0]: near(20), natural[1]: near(10)}) == ()


def test_few_samples_never_make_a_dip() -> None:
    """Fewer than six samples have no interval to be apart."""
    unknown = MedianInterval(20.0, -math.inf, math.inf, 3)
    assert dips({AT_2: unknown, AT_4: near(1)}) == ()


def test_misses_begin_with_the_worst() -> None:
    """Size counts, not sign."""
    latency = np.array([10.0, 10.0, 10.0])
    points = Points((AT_2, AT_4, AT_8), latency, latency)
    found = misses(HeldOut(points, np.array([10.1, 8.0, 11.0])))
    assert [miss.cell for miss in found] == [AT_4, AT_8, AT_2]
    assert found[0].residual == pytest.approx(-0.2)


def test_split_ratio_needs_both_splits() -> None:
    """A skewed cell without its balanced twin has no ratio."""
    skewed = replace(AT_2, split="skewed")
    assert split_ratios({skewed: near(20)}) == ()
    (ratio,) = split_ratios({skewed: near(20), AT_2: near(10)})
    assert ratio.ratio == 2.0
    assert ratio.low < 2.0 < ratio.high


def test_bandwidth_is_bytes_over_slope(view: View) -> None:
    """The made-up cost of an expert is found again as a bandwidth."""
    cell = Cell("layers", 16, 4, 64, 1, "balanced")
    fitted = view.fitted
    found = implied_bandwidth(fitted.cost, fitted.replicates, cell, 32)
    assert found is not None
    truth = fitted.cost.model.bytes_per_expert / 170.0 / 1e3
    assert found.gbps == pytest.approx(truth, rel=0.1)
    assert found.gbps_low <= found.gbps <= found.gbps_high


def test_flat_cost_implies_no_bandwidth(view: View) -> None:
    """Time that does not follow the union is not divided by."""
    cost = view.fitted.cost
    flat = replace(cost.layers, us_per_unit=np.zeros_like(cost.layers.us_per_unit))
    model = CostModel(cost.model, cost.measured_layers, flat, cost.ends)
    cell = Cell("layers", 16, 4, 64, 1, "balanced")
    assert implied_bandwidth(model, [model], cell, 32) is None
