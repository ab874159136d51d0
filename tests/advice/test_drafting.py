"""The time of drafting is given, measured, or assumed."""

import pytest

from evict_profile.advice.acceptance import of_rate
from evict_profile.advice.advise import Advisor
from evict_profile.advice.drafting import drafting_of_level
from evict_profile.errors import ConfigError
from evict_profile.records import replace
from evict_profile.table import CostTable, ServedStep
from evict_profile.table.overheads import RECORD
from tests.factories import DRAFTING


def test_a_given_level_keeps_the_steps_rest(saved_table):
    table = CostTable.load(saved_table)
    bare, clocked = (
        drafting_of_level(replace(table, drafting=own), 2.0).at(1)
        for own in (None, DRAFTING)
    )
    assert (bare.overhead_us(0), bare.overhead_us(3)) == (0.0, 6e3)
    assert (clocked.overhead_us(0), clocked.overhead_us(99)) == (10.0, 198e3 + 40.0)


def test_a_composed_table_has_the_drafting_of_the_record(composed_path):
    served = ServedStep.of(CostTable.load(composed_path))
    drafting = served.drafting
    assert drafting.at(1).overhead_us(2) == pytest.approx(
        RECORD.amounts.round_us + 2 * RECORD.amounts.level_us
    )
    assert drafting.workload == RECORD.source


def test_assumed_is_a_layer_and_the_head(saved_table):
    """The known run: a forward is all its layers and the rest."""
    table = CostTable.load(saved_table)
    drafting = ServedStep.of(table, context=64).drafting
    assert "ASSUMED" in drafting.workload
    layers = table.fit.measured_layers * table.fit.layer_scale
    rest = 200.0 + 40.0
    step_us = table.costs(1, 64).step_cost_us[1]
    one_us = drafting.at(1).overhead_us(1)
    assert one_us == pytest.approx((step_us - rest) / layers + rest, rel=0.02)


@pytest.mark.parametrize("level_ms", [-1.0, 1001.0, float("nan")])
def test_impossible_times_are_refused(saved_table, level_ms):
    with pytest.raises(ConfigError, match="--draft-level-ms"):
        drafting_of_level(CostTable.load(saved_table), level_ms)


def test_the_records_own_level_as_given_leaves_the_answer(composed_path):
    """The rest of a drafting step, which the record adds, stays."""
    table, lengths = CostTable.load(composed_path), of_rate(0.8)
    given_ms = RECORD.amounts.level_us / 1e3
    own, given = (Advisor.of(table, lengths, level_ms=ms) for ms in (None, given_ms))
    assert given.at(1) == own.at(1)
