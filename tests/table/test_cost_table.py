"""The runtime reads a table as written, inside its domain, and else refuses."""

import json

import numpy as np
import pytest

from evict_profile.cells import Cell
from evict_profile.errors import DataError
from evict_profile.records import to_mapping
from evict_profile.table import CostTable
from tests.factories import ACCEPTANCE, DRAFTING, HEAD_US, LAYERS, known_us


def test_measured_places_cost_what_the_table_says(saved_table):
    table = CostTable.load(saved_table)
    for stairs in table.staircases:
        cost = table.costs(stairs.batch, stairs.context)
        np.testing.assert_array_equal(cost.step_cost_us, stairs.step_cost_us)
        np.testing.assert_array_equal(cost.low_us, stairs.low_us)
        assert cost.caveats == ()


def test_places_between_cost_what_the_fit_says(saved_table, fitted):
    """Between contexts, from the fitted model at the table's activation curve."""
    table = CostTable.load(saved_table)
    tokens = np.arange(1.0, 17.0)
    union = np.array(table.activation.union)[1:17]
    costs = table.step_cost_us(batch=1, context=150)
    expected = fitted.cost.latency_us(tokens, union, 150, 1)
    np.testing.assert_allclose(costs[1:], expected)


def test_between_points_lies_between_them(saved_table):
    """Longer contexts cost more, and the interval keeps its relative width."""
    table = CostTable.load(saved_table)
    low, mid, high = (table.costs(2, context) for context in (64, 160, 256))
    assert np.all(low.step_cost_us[2:] < mid.step_cost_us[2:])
    assert np.all(mid.step_cost_us[2:] < high.step_cost_us[2:])
    assert np.all(mid.low_us <= mid.step_cost_us)
    assert np.all(mid.step_cost_us <= mid.high_us)


def test_entries_below_the_batch_repeat_the_roots(saved_table):
    costs = CostTable.load(saved_table).step_cost_us(batch=2, context=100)
    assert costs[0] == costs[1] == costs[2] < costs[3]


@pytest.mark.parametrize(("batch", "context"), [(3, 64), (1, 32), (1, 300)])
def test_outside_the_domain_is_refused(saved_table, batch, context):
    with pytest.raises(DataError, match=r"is outside what was measured, \d+\.\.\d+"):
        CostTable.load(saved_table).step_cost_us(batch, context)


def test_a_budget_of_experts_caps_the_cost(saved_table):
    """B = E costs what the fit says; fewer cost less where more had been activated."""
    table = CostTable.load(saved_table)
    experts = table.model.moe.num_experts
    whole, capped = (table.within_budget(n).step_cost_us(1, 64) for n in (experts, 8))
    np.testing.assert_allclose(whole, table.fitted_us(np.arange(17), 1, 64))
    assert (capped <= whole).all()
    assert capped[-1] < whole[-1]


def test_clamping_is_marked(saved_table):
    """A context beyond the last is covered there, and says so."""
    table = CostTable.load(saved_table)
    cost = table.costs(1, 300, outside="clamp")
    np.testing.assert_array_equal(cost.step_cost_us, table.step_cost_us(1, 256))
    assert cost.caveats == ("context 300 read as 256",)
    many = table.costs(3, 64, outside="clamp")
    assert many.caveats == ("batch 3 read as 2",)
    assert many.step_cost_us[3] == many.step_cost_us[0]


def test_the_cost_is_near_what_was_measured(saved_table):
    """The known cost of the run, scaled from two layers to four, within 2 %."""
    table = CostTable.load(saved_table)
    layers_us = known_us(
        Cell("layers", 8, 0, 64, 1, "balanced"), table.activation.union[8]
    )
    expected = layers_us * table.model.moe_layers / LAYERS + 200.0 + HEAD_US * 8
    assert table.step_cost_us(1, 64)[8] == pytest.approx(expected, rel=0.02)


def test_another_key_is_refused_with_the_difference(saved_table):
    """Named field by field; other facts than the key's do not matter."""
    running = {**to_mapping(CostTable.load(saved_table).key), "threads": 3}
    assert CostTable.load(saved_table, running).caveats == ()
    running["gpu"] = "another"
    with pytest.raises(DataError, match=r"gpu: another here, a test there.*profile"):
        CostTable.load(saved_table, running)


def test_an_empty_key_is_refused(saved_table):
    """It names nothing that runs; to check no key is None."""
    with pytest.raises(DataError, match="gpu: absent here, a test there"):
        CostTable.load(saved_table, running={})


def test_a_workload_is_read_as_it_was_put_in(workload_table):
    """Acceptance, drafting, and costs between places at the batch's curve."""
    table = CostTable.load(workload_table)
    assert (table.acceptance, table.drafting) == (ACCEPTANCE, DRAFTING)
    for batch in (1, 2):
        between = table.step_cost_us(batch, 64.5)[: 16 * batch + 1]
        np.testing.assert_allclose(between, table.step_cost_us(batch, 64), rtol=1e-3)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: d["activation"]["union"].reverse(), "activation: union falls"),
        (lambda d: d["staircases"][0]["low_us"].pop(), "step_cost_us, low_us"),
        (lambda d: d["fit"]["layers"][0].update(feature="x"), "feature 'x'"),
        (lambda d: d["fit"]["layers"][0].update(us_per_unit=-1.0), "us_per_unit"),
        (lambda d: d["fit"].update(layer_scale=1e300 * 1e300), "fit.layer_scale"),
        (lambda d: d["fit"]["marginal"][0].update(us=1.0), "us must lie inside"),
        (lambda d: d["staircases"].clear(), "staircases"),
        (lambda d: d["fit"]["marginal"][0]["start"].pop("union"), "start and end"),
        (lambda d: d["fit"]["marginal"][0].update(axis="batch"), "axis 'batch'"),
        (lambda d: d["fit"]["domain"]["batch"].reverse(), "domain.batch falls"),
        (lambda d: d.update(caveats=[]), "unknown key 'caveats'"),
    ],
)
def test_a_wrong_field_is_refused_by_name(saved_table, change, sentence):
    document = CostTable.load(saved_table).document
    document = json.loads(json.dumps(document))
    change(document)
    with pytest.raises(DataError, match=sentence):
        CostTable.of(document, "a table")


def test_a_domain_of_one_place_is_read(saved_table):
    document = json.loads(json.dumps(CostTable.load(saved_table).document))
    document["fit"]["domain"]["batch"] = [1, 1]
    assert CostTable.of(document, "a table").fit.domain["batch"] == (1, 1)


def test_a_watch_expects_what_intervals_and_noise_allow(saved_table):
    table = CostTable.load(saved_table)
    lows, highs = (
        np.concatenate([bound / np.array(s.step_cost_us) for s, bound in pairs])
        for pairs in (
            [(s, np.array(s.low_us)) for s in table.staircases],
            [(s, np.array(s.high_us)) for s in table.staircases],
        )
    )
    assert table.noise > 0.0
    assert table.watch_bounds == pytest.approx(
        (np.median(lows) - table.noise, np.median(highs) + table.noise)
    )
