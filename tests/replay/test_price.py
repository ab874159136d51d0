"""What deciding adds to a step is paid by those that decide, and turns the verdict."""

import numpy as np
import pytest

from evict_profile.drafting import DraftClock, Drafting
from evict_profile.records import replace
from evict_profile.replay.compare import ScenarioReplay
from evict_profile.replay.comparison import ADAPT, FIX, Scenario
from evict_profile.replay.dataset import TraceArrays
from evict_profile.replay.oracle import oracle_run
from evict_profile.replay.policies import RATE, RATE_DEPTH, RATIO
from evict_profile.replay.simulate import StepTimes, simulate
from evict_profile.replay.synthetic import synthetic_trace
from tests.replay.conftest import policies

PRICE_US = 700.0


def priced(table, us):
    own = table.drafting
    clocks = tuple(replace(clock, mechanism_us=us) for clock in own.batches)
    return replace(table, drafting=replace(own, batches=clocks))


def fixed_us(run, table, arrays):
    """Time beside verification and drafting, float64 [S], less the table's own."""
    clock = table.drafting.at(1)
    own_us = np.where(run.depth > 0, clock.fixed_us, clock.plain_fixed_us)
    return run.cost[:, 2] - own_us


@pytest.mark.parametrize(
    ("name", "us"),
    [
        ("plain", 0.0),
        ("full tree", 0.0),
        ("pair", 0.0),
        (RATIO, PRICE_US),
        (RATE, PRICE_US),
        (RATE_DEPTH, PRICE_US),
    ],
)
def test_every_step_of_a_policy_that_decides_on_the_host_pays(table, arrays, name, us):
    own = priced(table, PRICE_US)
    run = simulate(arrays, policies(own)[name](), StepTimes(own, arrays, 1), 1, seed=0)
    assert fixed_us(run, own, arrays) == pytest.approx(us)


def test_the_bound_pays_nothing(table, arrays):
    own = priced(table, PRICE_US)
    run = oracle_run(arrays, StepTimes(own, arrays, 1), 1, seed=0)
    assert fixed_us(run, own, arrays) == pytest.approx(0.0)


@pytest.mark.parametrize(("us", "said"), [(None, True), (0.0, False), (40.0, False)])
def test_a_price_that_was_not_measured_is_said_once(table, arrays, us, said):
    caveats = StepTimes(priced(table, us), arrays, 1).caveats
    word = "what deciding adds was not measured, and is taken as 39 us at batch 1"
    assert sum(each.startswith(word) for each in caveats) == said


@pytest.mark.parametrize(("batch", "us"), [(1, 39.0), (16, 58.0), (40, 83.0)])
def test_a_price_that_was_not_measured_is_that_of_the_plug_in(table, arrays, batch, us):
    assert StepTimes(priced(table, None), arrays, batch).deciding_us == us


@pytest.mark.parametrize(("us", "choice"), [(0.0, ADAPT), (1500.0, FIX)])
def test_a_width_is_fixed_where_adapting_does_not_pay_for_itself(
    bare_table, us, choice
):
    """Of settings that a server runs without deciding; text is easy or hard."""
    levels_us = tuple(10.0 * depth for depth in range(7))
    clock = DraftClock(1, levels_us, 40.0, 1500.0, mechanism_us=us)
    table = replace(
        bare_table,
        drafting=Drafting("none", "a test", (clock,)),
        axes=replace(bare_table.axes, capture_sizes=(1, 5, 61)),
    )
    arrays = TraceArrays(synthetic_trace("bimodal", prompts=8, tokens=24, context=100))
    scenario = Scenario("bimodal", 0.0, 1)
    assert ScenarioReplay(arrays, table, scenario, seeds=1).compare().choice == choice
