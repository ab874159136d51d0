"""The time of drafting is given, of the draft's own table, measured, or assumed."""

from pathlib import Path

import pytest

from evict_profile.advice.drafting import drafting_of
from evict_profile.errors import ConfigError, DataError
from evict_profile.records import replace
from evict_profile.table import CostTable, ServedStep, Staircase
from evict_profile.table.overheads import RECORD
from tests.factories import DRAFTING

FACTS = {"device": "a CPU", "threads": 1, "library_sha256": "abc"}


@pytest.fixture
def target(saved_table):
    table = CostTable.load(saved_table)
    made = replace(table.provenance, fingerprint=FACTS, new_graph_us=7.0)
    key = replace(table.key, engine="llama_cpp", model="large")
    return replace(table, key=key, provenance=made)


@pytest.fixture
def draft(target):
    """10 us a token and 5 us of every forward."""
    steps = tuple(5.0 + 10.0 * max(1, n) for n in range(17))
    stairs = Staircase(1, 64, steps, steps, steps)
    key = replace(target.key, model="small")
    return replace(target, key=key, staircases=(stairs,), path=Path("draft.json"))


def test_a_step_drafts_one_by_one_and_reads_what_was_verified(target, draft):
    """Three of 15 us, four tokens in one of 45, and a graph for either shape."""
    cost = drafting_of(ServedStep.of(target), draft_table=draft, context=64)
    assert cost.at(1).overhead_us(3) == 3 * 15.0 + 45.0 + 2 * 7.0
    assert cost.at(1).overhead_us(0) == 0.0
    assert cost.workload == "forwards of small, by its own table"


def test_a_time_of_a_level_beside_a_table_is_refused(target, draft):
    with pytest.raises(ConfigError, match="or --draft-table, not both"):
        drafting_of(ServedStep.of(target), 1.0, draft)


def test_a_table_of_another_engine_is_refused(target, draft):
    other = replace(draft, key=replace(draft.key, engine="sglang"))
    for pair in ((target, other), (other, draft)):
        with pytest.raises(ConfigError, match=r"draft\.json: a table of sglang"):
            drafting_of(ServedStep.of(pair[0]), draft_table=pair[1])


def test_a_draft_is_as_slow_as_it_was_on_average(target, draft):
    """Costs are of the speed that was frequent: here of 1.2 and of 1.5 of it."""

    def slowed(table, times):
        made = replace(
            table.provenance, reference_us=50.0, mean_reference_us=50.0 * times
        )
        return replace(table, provenance=made)

    usual = drafting_of(ServedStep.of(target), draft_table=draft, context=64)
    slower = (ServedStep.of(slowed(target, 1.2)), None, slowed(draft, 1.5), 64)
    us = drafting_of(*slower).at(1).overhead_us(2)
    assert us == pytest.approx(usual.at(1).overhead_us(2) * 1.5 / 1.2)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"fingerprint": FACTS | {"threads": 2}}, "threads: .* profile small as large"),
        ({"new_graph_us": None}, "profile small again"),
    ],
)
def test_a_table_of_another_machine_or_of_no_graphs_is_refused(
    target, draft, changed, says
):
    other = replace(draft, provenance=replace(draft.provenance, **changed))
    with pytest.raises(ConfigError, match=says):
        drafting_of(ServedStep.of(target), draft_table=other)


def test_a_draft_covered_for_fewer_tokens_or_contexts_is_refused(target, draft):
    domain = {**draft.fit.domain, "width": (1, 8)}
    narrow = replace(draft, fit=replace(draft.fit, domain=domain))
    with pytest.raises(ConfigError, match=r"covers up to 8 tokens.*up to 16"):
        drafting_of(ServedStep.of(target), draft_table=narrow)
    with pytest.raises(DataError, match="context"):
        drafting_of(ServedStep.of(target), draft_table=draft, context=4096)


def test_a_given_level_keeps_the_steps_rest(saved_table):
    table = CostTable.load(saved_table)
    assert drafting_of(ServedStep.of(replace(table, drafting=DRAFTING))) == DRAFTING
    bare, clocked = (
        drafting_of(ServedStep.of(replace(table, drafting=own)), 2.0).at(1)
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
def test_impossible_times_are_refused(target, level_ms):
    with pytest.raises(ConfigError, match="--draft-level-ms"):
        drafting_of(ServedStep.of(target), level_ms)
