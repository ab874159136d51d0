"""What steps are charged."""

import numpy as np
import pytest

from evict_profile.advice.steps import OfEstimate
from evict_profile.drafting import DraftClock, Drafting
from evict_profile.records import replace
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.simulate import StepTimes
from evict_profile.served.step import ServedStep
from evict_profile.table import DATASHEET, CostTable


@pytest.mark.parametrize(
    ("captured", "run"), [((), [3.0, 4, 5]), ((1, 4, 16), [4.0, 4, 16])]
)
def test_verification_is_the_fits_cost_of_what_ran(table, arrays, captured, run):
    """Captured widths are paid for whole."""
    own = replace(table, axes=replace(table.axes, capture_sizes=captured))
    costs = StepTimes(own, arrays, 1)
    got = [costs.verify_us(tokens, 5.5, 100.0) for tokens in (3, 4, 5)]
    want = table.cost.latency_us(np.array(run), np.full(3, 5.5), 100.0, 1)
    assert got == pytest.approx(want)


def test_beside_verification_stand_the_tables_clocks(table, arrays):
    """Of the nearest batch that was clocked; levels beyond them cost as the last."""
    alone, many = StepTimes(table, arrays, 1), StepTimes(table, arrays, 4)
    assert [alone.clock.drafted_us(d) for d in (0, 2, 4, 6)] == [
        0.0,
        250.0,
        650.0,
        1050.0,
    ]
    assert (alone.clock.rest_us(0), alone.clock.rest_us(3)) == (10.0, 40.0)
    assert (many.clock.drafted_us(1), many.clock.rest_us(1)) == (400.0, 80.0)


@pytest.mark.parametrize("speed", [1.0, 0.5])
def test_without_the_tables_clocks_those_of_the_trace_are_taken_at_its_speed(
    bare_table, arrays, speed
):
    """The synthetic trace drafts a level in 60 us."""
    costs = StepTimes(bare_table, arrays, 1, speed)
    assert (costs.clock.drafted_us(2), costs.clock.rest_us(0)) == (
        speed * 120.0,
        speed * 10.0,
    )


def test_a_clock_without_levels_costs_any_depth(table, arrays):
    clock = DraftClock(1, (0.0,), 200.0, 50.0, token_us=3.0)
    drafting = Drafting("none", "a test", (clock,))
    costs = StepTimes(replace(table, drafting=drafting), arrays, 1)
    assert (costs.clock.drafted_us(0), costs.clock.drafted_us(3)) == (0.0, 0.0)
    assert costs.clock.rest_us(3) == 200.0
    assert costs.step(np.array([0]), np.arange(1, 3), 3).fixed_us == 200.0 + 2 * 3.0


def test_without_any_clocks_drafting_takes_what_advise_assumes(bare_table, trace):
    """Policies decide with it as well, and it is said."""
    costs = StepTimes(bare_table, TraceArrays(replace(trace, clocks=())), 1)
    context = costs.arrays.context.mean()
    told_us = ServedStep.of(bare_table, context=context).beside_us(1, 4)
    assert costs.clock.drafted_us(4) == pytest.approx(told_us)
    assert costs.table.drafting
    assert costs.table.drafting.at(1).beside_us(4) == pytest.approx(told_us)
    assert f"takes {costs.clock.drafted_us(1):.0f} us" in costs.assumptions[0]
    assert costs.assumptions[0] in costs.caveats


def test_without_routes_the_union_is_the_activation_curves(bare_table, table, trace):
    """Where the curve is a guess, uniform routing is said."""
    unrouted = TraceArrays(replace(trace, routes=None))
    costs = StepTimes(table, unrouted, 1)
    cost = costs.step(np.array([0]), np.arange(1, 4), 2)
    assert cost.union == pytest.approx(table.activation.union[4])
    assert any("no routes" in caveat for caveat in costs.caveats)
    for arrays, said in ((unrouted, True), (TraceArrays(trace), False)):
        caveats = StepTimes(bare_table, arrays, 1).caveats
        assert any("routing is uniform" in each for each in caveats) == said


@pytest.mark.parametrize("batch", [1, 2])
def test_the_interval_of_a_cost_is_of_the_place_of_the_replay(table, arrays, batch):
    """Its batch, context and widths, with no noise of single cells added."""
    verified = np.array([1.0, 4.0, 5.0])
    cost = table.costs(batch, arrays.context.mean())
    tokens = (batch * verified).astype(int)
    low, high = (
        np.median(bound[tokens] / cost.step_cost_us[tokens])
        for bound in (cost.low_us, cost.high_us)
    )
    found = StepTimes(table, arrays, batch).interval(verified)
    assert found == pytest.approx((low, high))


def test_what_lies_outside_the_table_is_said(table, arrays):
    caveats = StepTimes(table, arrays, 16).caveats
    assert "batch 16 of the trace, 1..2 in the table" in caveats
    assert "drafting of batch 16 as of 4" in caveats
    assert any(caveat.startswith("tokens 16..400 of the trace") for caveat in caveats)


def test_a_replay_of_an_estimate_says_how_its_steps_differ_from_those_of_advise(
    composed_path, trace
):
    table = CostTable.load(composed_path)
    costs = StepTimes(table, TraceArrays(replace(trace, clocks=(), routes=None)), 4)
    context = min(table.axes.context)  # The nearest to that of the trace.
    own = costs.served.ratio(4, 4, 3, context).value
    advised = OfEstimate(table, context).ratio(4, 4, 3).value.value
    assert costs.over_plain(3) == pytest.approx((own, advised), rel=0.01)
    [said] = [each for each in costs.assumptions if "advise" in each]
    assert f"{own:.2f} plain steps by kernels and drafting and {advised:.2f}" in said
    assert said.endswith(f"gains {'more' if own < advised else 'less'} here")


@pytest.mark.parametrize("clock", [DATASHEET, "cuda events"])
def test_only_an_estimate_is_compared_with_advise(bare_table, arrays, clock):
    made = replace(bare_table.provenance, clock=clock)
    said = StepTimes(replace(bare_table, provenance=made), arrays, 1).assumptions
    assert any("by advise" in each for each in said) == (clock == DATASHEET)
