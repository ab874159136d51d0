"""The dense control's table has the measured times, and its claims name their world."""

from dataclasses import replace

import pytest

from benchmarks.claims import dense

TIMES = {1: 5000.0, 2: 6000.0, 8: 5900.0, 32: 12000.0}


@pytest.fixture(scope="module")
def found():
    return [
        dense.Verification("dense", width, us, us, us) for width, us in TIMES.items()
    ]


def test_a_forward_takes_the_measured_time_of_its_width(trees, found):
    """Between two widths it rises evenly, and never falls."""
    table = dense.table_of(found, trees.of(half=0))
    cost = table.step_cost_us(1, 200)
    assert cost[[1, 2, 8, 20, 32]] == pytest.approx([5e3, 6e3, 6e3, 9e3, 12e3])


def test_drafting_takes_the_recorded_times(trees, found):
    trace = trees.of(half=0)
    [own] = [clock for clock in trace.clocks if clock.batch == 1]
    table = dense.table_of(found, trace)
    levels_us = table.drafting.at(1).draft_us
    assert levels_us == pytest.approx(own.draft_us, abs=0.1)


def test_a_cut_gains_nothing_where_width_costs_nothing(trees, found):
    flat = [replace(each, verify_us=5000.0) for each in found]
    rows = [*dense.claims("dense", trees.whole, flat)]
    assert [row.on.split(", ")[3] for row in rows] == 3 * ["dense"]
    for row in rows[:2]:
        gain = float(row.ours.split(" ")[0])
        assert gain == pytest.approx(0.0, abs=3.0)
