"""The runtime reads a table as written, inside its domain, and else refuses."""

import json

import numpy as np
import pytest

from evict_profile.cells import Cell
from evict_profile.errors import DataError
from evict_profile.records import replace, to_mapping
from evict_profile.table import DATASHEET, CostTable
from tests.factories import ACCEPTANCE, DRAFTING, HEAD_US, LAYERS, known_us


@pytest.fixture
def table(saved_table):
    return CostTable.load(saved_table)


def test_measured_places_cost_what_the_table_says(table):
    """Entries below the batch repeat the roots."""
    for stairs in table.staircases:
        cost = table.costs(stairs.batch, stairs.context)
        np.testing.assert_array_equal(cost.step_cost_us, stairs.step_cost_us)
        np.testing.assert_array_equal(cost.low_us, stairs.low_us)
        assert cost.caveats == ()
    costs = table.step_cost_us(batch=2, context=100)
    assert costs[0] == costs[1] == costs[2] < costs[3]


def test_places_between_cost_what_the_fit_says(table, fitted):
    """Between contexts, from the fitted model at the table's activation curve.

    Longer contexts cost more, and the interval keeps its relative width.
    """
    tokens = np.arange(1.0, 17.0)
    union = np.array(table.activation.union)[1:17]
    costs = table.step_cost_us(batch=1, context=150)
    expected = fitted.cost.latency_us(tokens, union, 150, 1)
    np.testing.assert_allclose(costs[1:], expected)
    low, mid, high = (table.costs(2, context) for context in (64, 160, 256))
    assert np.all(low.step_cost_us[2:] < mid.step_cost_us[2:])
    assert np.all(mid.step_cost_us[2:] < high.step_cost_us[2:])
    assert np.all(mid.low_us <= mid.step_cost_us)
    assert np.all(mid.step_cost_us <= mid.high_us)


def test_a_budget_of_experts_caps_the_cost(table):
    """B = E costs what the fit says; fewer cost less where more had been activated."""
    experts = table.model.moe.num_experts
    whole, capped = (table.within_budget(n).step_cost_us(1, 64) for n in (experts, 8))
    np.testing.assert_allclose(whole, table.read_anew().step_cost_us(1, 64))
    assert (capped <= whole).all()
    assert capped[-1] < whole[-1]


def test_without_padding_a_width_between_graphs_costs_its_own_tokens(table):
    axes = replace(table.axes, capture_sizes=(1, 4, 8))
    padded, exact = replace(table, axes=axes).read_anew(), table.read_anew()
    for batch in table.axes.batch:
        ran, own = (each.step_cost_us(batch, 64) for each in (padded, exact))
        assert ran[3 * batch] == ran[4 * batch] > own[3 * batch]
        np.testing.assert_allclose(
            padded.unpadded.step_cost_us(batch, 64), own[: len(ran)]
        )
    assert table.unpadded is table


def test_outside_the_domain_is_refused_or_clamped_with_a_mark(table):
    for batch, context in ((3, 64), (1, 32), (1, 300)):
        with pytest.raises(DataError, match=r"outside the table's \d+\.\.\d+"):
            table.step_cost_us(batch, context)
    cost = table.costs(1, 300, outside="clamp")
    np.testing.assert_array_equal(cost.step_cost_us, table.step_cost_us(1, 256))
    assert cost.caveats[0].startswith("context 300 read as 256: ")
    many = table.costs(3, 64, outside="clamp")
    assert many.caveats[0].startswith("batch 3 read as 2: ")
    assert many.step_cost_us[3] == many.step_cost_us[0]


def test_a_large_batch_may_end_at_a_shorter_context(table):
    """Where its staircases end, as the rows of an estimated table do."""
    own = tuple(s for s in table.staircases if (s.batch, s.context) != (2, 256))
    shorter = replace(table, staircases=own)
    assert shorter.contexts(1) == (64, 256)
    assert shorter.contexts(2) == (64, 64)
    shorter.costs(1, 256)
    with pytest.raises(DataError, match="context 256 is outside the table's"):
        shorter.costs(2, 256)


def test_the_cost_is_near_what_was_measured(table):
    """The known cost of the run, scaled from two layers to four, within 2 %."""
    cell = Cell("layers", 8, 0, 64, 1, "balanced")
    layers_us = known_us(cell, table.activation.union[8])
    expected = layers_us * table.model.moe_layers / LAYERS + 200.0 + HEAD_US * 8
    assert table.step_cost_us(1, 64)[8] == pytest.approx(expected, rel=0.02)


def test_another_key_is_refused_with_the_difference(saved_table):
    """Named field by field; other facts than the key's do not matter.

    An empty key names nothing that runs; to check no key is None.
    """
    running = {**to_mapping(CostTable.load(saved_table).key), "threads": 3}
    assert CostTable.load(saved_table, running).caveats == ()
    running["gpu"] = "another"
    with pytest.raises(DataError, match=r"gpu: another here, a test there.*profile"):
        CostTable.load(saved_table, running)
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
        (lambda d: d["staircases"].clear(), "staircases"),
        (lambda d: d["fit"]["domain"]["batch"].reverse(), "domain.batch falls"),
        (lambda d: d.update(caveats=[]), "unknown key 'caveats'"),
    ],
)
def test_a_wrong_field_is_refused_by_name(table, change, sentence):
    """A domain of one place is read."""
    document = json.loads(json.dumps(table.document))
    document["fit"]["domain"]["batch"] = [1, 1]
    assert CostTable.of(document, "a table").fit.domain["batch"] == (1, 1)
    document = json.loads(json.dumps(table.document))
    change(document)
    with pytest.raises(DataError, match=sentence):
        CostTable.of(document, "a table")


def test_a_watch_expects_what_intervals_and_noise_allow(table):
    parts = [np.divide((s.low_us, s.high_us), s.step_cost_us) for s in table.staircases]
    low, high = np.median(np.hstack(parts), axis=1)
    assert table.noise > 0.0
    assert table.watch_bounds == pytest.approx((low - table.noise, high + table.noise))


def test_a_data_sheet_is_an_origin_of_its_own(saved_table):
    made = CostTable.load(saved_table)
    sheet = replace(made, provenance=replace(made.provenance, clock=DATASHEET))
    assert (made.origin, made.is_estimated) == ("measured", False)
    assert (sheet.origin, sheet.is_estimated) == (DATASHEET, True)
    assert "data sheet, not measured" in sheet.own_caveats[0]
