"""What steps are charged."""

import numpy as np
import pytest

from evict_profile.advice.drafting import drafting_of
from evict_profile.records import replace
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.simulate import StepPrices
from evict_profile.table import DraftClock, Drafting


def test_verification_is_the_fits_price_of_what_ran(table, arrays):
    tokens, union = np.array([1, 7, 20]), np.array([2.0, 5.5, 9.0])
    got = StepPrices(table, arrays, 1).verify_us(tokens, union, 100.0)
    want = table.cost.price(tokens.astype(float), union, 100.0, 1)
    assert got == pytest.approx(want)


def test_captured_widths_are_paid_for_whole(table, arrays):
    captured = StepPrices(
        replace(table, axes=replace(table.axes, capture_sizes=(1, 4, 16))), arrays, 1
    )
    got = captured.verify_us(np.array([3, 4, 5]), np.full(3, 5.0), 100.0)
    want = table.cost.price(np.array([4.0, 4, 16]), np.full(3, 5.0), 100.0, 1)
    assert got == pytest.approx(want)


def test_beside_verification_stand_the_tables_clocks(table, arrays):
    """Of the nearest batch that was clocked; levels beyond them cost as the last."""
    alone, many = StepPrices(table, arrays, 1), StepPrices(table, arrays, 4)
    assert [alone.draft_us(d) for d in (0, 2, 4, 6)] == [0.0, 250.0, 650.0, 1050.0]
    assert (alone.fixed_us(0), alone.fixed_us(3)) == (10.0, 40.0)
    assert (many.draft_us(1), many.fixed_us(1)) == (400.0, 80.0)


@pytest.mark.parametrize("speed", [1.0, 0.5])
def test_without_the_tables_clocks_those_of_the_trace_are_taken_at_its_speed(
    bare_table, arrays, speed
):
    """The synthetic trace drafts a level in 60 us."""
    prices = StepPrices(bare_table, arrays, 1, speed)
    assert (prices.draft_us(2), prices.fixed_us(0)) == (speed * 120.0, speed * 10.0)


def test_a_clock_without_levels_prices_any_depth(table, arrays):
    drafting = Drafting("none", "a test", (DraftClock(1, (0.0,), 200.0, 50.0),))
    prices = StepPrices(replace(table, drafting=drafting), arrays, 1)
    assert (prices.draft_us(0), prices.draft_us(3)) == (0.0, 0.0)
    assert prices.fixed_us(3) == 200.0


def test_without_any_clocks_drafting_takes_what_advise_assumes(bare_table, trace):
    """Policies decide with it as well, and it is said."""
    prices = StepPrices(bare_table, TraceArrays(replace(trace, clocks=())), 1)
    context = prices.arrays.context.mean()
    told_us = drafting_of(bare_table, context=context).at(1).overhead_us(4)
    assert prices.draft_us(4) == pytest.approx(told_us)
    assert prices.table.drafting
    assert prices.table.drafting.at(1).overhead_us(4) == pytest.approx(told_us)
    assert f"takes {prices.draft_us(1):.0f} us" in prices.assumptions[0]
    assert prices.assumptions[0] in prices.caveats


def test_uniform_routing_is_said_where_a_trace_has_no_routes(bare_table, trace):
    for routes, said in (({"routes": None}, True), ({}, False)):
        prices = StepPrices(bare_table, TraceArrays(replace(trace, **routes)), 1)
        assert any("routing is uniform" in each for each in prices.caveats) == said


def test_without_routes_the_union_is_the_activation_curves(table, trace):
    prices = StepPrices(table, TraceArrays(replace(trace, routes=None)), 1)
    price = prices.step(np.array([0]), np.arange(1, 4), 2)
    assert price.union == pytest.approx(table.activation.union[4])
    assert any("no routes" in caveat for caveat in prices.caveats)


@pytest.mark.parametrize("batch", [1, 2])
def test_the_interval_of_a_price_is_of_the_place_of_the_replay(table, arrays, batch):
    """Its batch, context and widths, with no noise of single cells added."""
    verified = np.array([1.0, 4.0, 5.0])
    price = table.price(batch, arrays.context.mean())
    tokens = (batch * verified).astype(int)
    low, high = (
        np.median(bound[tokens] / price.step_cost_us[tokens]) - 1.0
        for bound in (price.low_us, price.high_us)
    )
    note = StepPrices(table, arrays, batch).interval_note(verified)
    assert f"batch {batch} has a 95 % interval of {low:+.1%} to {high:+.1%} (" in note


def test_what_lies_outside_the_table_is_said(table, arrays):
    caveats = StepPrices(table, arrays, 16).caveats
    assert "batch 16 of the trace, 1..2 in the table" in caveats
    assert "drafting of batch 16 as of 4" in caveats
    assert any(caveat.startswith("tokens 16..400 of the trace") for caveat in caveats)
