"""The runtime reads a table as written, prices inside its domain, else refuses."""

import json
from pathlib import Path

import numpy as np
import pytest

from evict_profile.errors import TableError
from evict_profile.fit.fitted import Fitted
from evict_profile.records import digest, replace, to_mapping
from evict_profile.table import CostTable
from tests.factories import ACCEPTANCE, DRAFTING, HEAD_US, LAYERS, known_us


def signed(path: Path, **changes: object) -> Path:
    """Change fields of a table, and sign it again."""
    document = {**json.loads(path.read_text()), **changes}
    document.pop("sha256")
    path.write_text(json.dumps({**document, "sha256": digest(document)}))
    return path


def test_measured_places_cost_what_the_table_says(saved_table: Path) -> None:
    """Number for number, at every measured batch and context."""
    table = whole = CostTable.load(saved_table)
    for stairs in whole.staircases:
        price = table.price(stairs.batch, stairs.context)
        np.testing.assert_array_equal(price.step_cost_us, stairs.step_cost_us)
        np.testing.assert_array_equal(price.low_us, stairs.low_us)
        assert price.caveats == ()


def test_places_between_cost_what_the_fit_says(
    saved_table: Path, fitted: Fitted
) -> None:
    """Between contexts, from the fitted model at the table's activation curve."""
    whole = CostTable.load(saved_table)
    tokens = np.arange(1.0, 17.0)
    union = np.array(whole.activation.union)[1:17]
    costs = CostTable.load(saved_table).step_cost_us(batch=1, context=150)
    expected = fitted.cost.price(tokens, union, 150, 1)
    np.testing.assert_allclose(costs[1:], expected)


def test_between_points_lies_between_them(saved_table: Path) -> None:
    """Longer contexts cost more, and the interval keeps its relative width."""
    table = CostTable.load(saved_table)
    low, mid, high = (table.price(2, context) for context in (64, 160, 256))
    assert np.all(low.step_cost_us[2:] < mid.step_cost_us[2:])
    assert np.all(mid.step_cost_us[2:] < high.step_cost_us[2:])
    assert np.all(mid.low_us <= mid.step_cost_us)
    assert np.all(mid.step_cost_us <= mid.high_us)


def test_entries_below_the_batch_repeat_the_roots(saved_table: Path) -> None:
    """Every request verifies at least its root."""
    costs = CostTable.load(saved_table).step_cost_us(batch=2, context=100)
    assert costs[0] == costs[1] == costs[2] < costs[3]


@pytest.mark.parametrize(("batch", "context"), [(3, 64), (1, 32), (1, 300)])
def test_outside_the_domain_is_refused(
    saved_table: Path, batch: int, context: int
) -> None:
    """The sentence names the axis and its range."""
    with pytest.raises(TableError, match=r"is outside what was measured, \d+\.\.\d+"):
        CostTable.load(saved_table).step_cost_us(batch, context)


def test_a_budget_of_all_experts_prices_as_the_fit_does(saved_table: Path) -> None:
    """B = E caps nothing."""
    table = CostTable.load(saved_table)
    experts = int(np.ceil(max(table.activation.union)))
    batch, context = table.staircases[0].batch, table.staircases[0].context
    fitted = table._fitted(batch, batch, context, ())
    capped = table.within_budget(experts).price(batch, context)
    np.testing.assert_allclose(capped.step_cost_us, fitted.step_cost_us)


def test_a_smaller_budget_never_costs_more(saved_table: Path) -> None:
    """And costs less where more experts would have been woken."""
    table = CostTable.load(saved_table)
    batch, context = table.staircases[0].batch, table.staircases[0].context
    dear, cheap = (
        table.within_budget(experts).step_cost_us(batch, context)
        for experts in (int(np.ceil(max(table.activation.union))), 8)
    )
    assert (cheap <= dear).all()
    assert cheap[-1] < dear[-1]


def test_clamping_is_marked(saved_table: Path) -> None:
    """A context beyond the last is priced there, and says so."""
    table = CostTable.load(saved_table)
    price = table.price(1, 300, outside="clamp")
    np.testing.assert_array_equal(price.step_cost_us, table.step_cost_us(1, 256))
    assert price.caveats == ("context 300 priced as 256",)
    many = table.price(3, 64, outside="clamp")
    assert many.caveats == ("batch 3 priced as 2",)
    assert many.step_cost_us[3] == many.step_cost_us[0]


def test_the_price_is_near_what_was_measured(saved_table: Path) -> None:
    """The known cost of the run, scaled from two layers to four, within 2 %."""
    table = whole = CostTable.load(saved_table)
    union = whole.activation.union[8]
    cell = next(c for c in _cells() if (c.width, c.context, c.batch) == (8, 64, 1))
    layers_us = known_us(cell, union) * whole.model.moe_layers / LAYERS
    expected = layers_us + 200.0 + HEAD_US * 8
    assert table.step_cost_us(1, 64)[8] == pytest.approx(expected, rel=0.02)


def _cells() -> list:
    from evict_profile.sweep.grid import make_grid
    from tests.factories import MODEL, SWEEP

    return [c for c in make_grid(SWEEP, MODEL).cells if c.part == "layers"]


def test_the_same_key_loads(saved_table: Path) -> None:
    """With the key of what runs, and whatever else is known of it."""
    running = {**to_mapping(CostTable.load(saved_table).key), "threads": 3}
    assert CostTable.load(saved_table, running).caveats == ()


def test_another_key_is_refused_with_the_difference(saved_table: Path) -> None:
    """Named field by field, with the command that would measure it."""
    running = {**to_mapping(CostTable.load(saved_table).key), "engine_version": "2"}
    with pytest.raises(TableError, match=r"engine_version: 2 here, 1 there.*profile"):
        CostTable.load(saved_table, running)


def test_the_nearest_is_taken_only_if_told_and_marked(saved_table: Path) -> None:
    """Every price then carries the difference."""
    running = {**to_mapping(CostTable.load(saved_table).key), "gpu": "another"}
    table = CostTable.load(saved_table, running, allow_nearest=True)
    assert table.price(1, 64).caveats == ("gpu: another here, a test there",)


def test_a_workload_is_read_as_it_was_put_in(workload_table: Path) -> None:
    """Acceptance, drafting, and prices between places at the batch's curve."""
    table = CostTable.load(workload_table)
    assert (table.acceptance, table.drafting) == (ACCEPTANCE, DRAFTING)
    for batch in (1, 2):
        between = table.step_cost_us(batch, 64.5)[: 16 * batch + 1]
        np.testing.assert_allclose(between, table.step_cost_us(batch, 64), rtol=1e-3)


def test_an_unmeasured_place_names_the_measured_ones(saved_table: Path) -> None:
    """A staircase is of a measured batch and context; others are listed."""
    table = CostTable.load(saved_table)
    assert len(table.staircase(batch=1, context=64).step_cost_us) == 17
    with pytest.raises(TableError, match=r"\(1, 64\), \(1, 256\)"):
        table.staircase(batch=3, context=64)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: d["fit"]["domain"].update(width=[1, 99]), "fit.domain.width"),
        (lambda d: d["axes"].update(batch=[1, 2, 3]), "fit.domain.batch"),
        (lambda d: d["activation"]["union"].pop(), "activation.union"),
        (lambda d: d["activation"]["union"].reverse(), "activation: union falls"),
        (lambda d: d["staircases"].append(d["staircases"][0]), "staircases"),
        (lambda d: d["staircases"][0]["step_cost_us"].reverse(), "step_cost_us"),
        (lambda d: d["staircases"][0]["low_us"].pop(), "step_cost_us, low_us"),
        (lambda d: d["fit"]["layers"][0].update(feature="x"), "feature 'x'"),
        (lambda d: d["fit"]["layers"][0].update(us_per_unit=-1.0), "us_per_unit"),
        (lambda d: d["fit"].update(layer_scale=1e300 * 1e300), "fit.layer_scale"),
        (lambda d: d["fit"]["marginal"][0].update(us=1.0), "us must lie inside"),
        (
            lambda d: d["fit"]["marginal"][0].update(us=1.0, us_interval=[0.5, 1.5]),
            "fit.marginal: 'expert in each layer' is not what the fit prices",
        ),
        (lambda d: d["fit"]["marginal"][0]["start"].pop("union"), "start and end"),
        (lambda d: d["fit"]["marginal"][0].update(axis="batch"), "axis 'batch'"),
        (lambda d: d.update(caveats=[]), "unknown key 'caveats'"),
    ],
)
def test_parts_that_disagree_are_refused(saved_table: Path, change, sentence) -> None:
    """A document that was changed and signed again; the field is named."""
    document = CostTable.load(saved_table).document
    document = json.loads(json.dumps(document))
    change(document)
    with pytest.raises(TableError, match=sentence):
        CostTable.of(document, "a table")


def test_what_older_tables_do_not_say_of_their_samples_is_left_out(
    saved_table: Path,
) -> None:
    """So that their hash stays as it was."""
    table = CostTable.load(saved_table)
    assert table.document["provenance"]["precision"]["asked"] == 0.02
    made = replace(table.provenance, precision=None)
    assert "precision" not in replace(table, provenance=made).document["provenance"]
