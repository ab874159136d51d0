"""The runtime reads a table as written, prices inside its domain, else refuses."""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest

from evict_profile.errors import TableError
from evict_profile.fit.fitted import Fitted
from evict_profile.runtime import CostTable
from evict_profile.runtime.table import KEY
from evict_profile.signed import digest
from evict_profile.table import Key, load_table
from tests.factories import ACCEPTANCE, DRAFTING, HEAD_US, LAYERS, known_us


def signed(path: Path, **changes: object) -> Path:
    """Change fields of a table, and sign it again."""
    document = {**json.loads(path.read_text()), **changes}
    document.pop("sha256")
    path.write_text(json.dumps({**document, "sha256": digest(document)}))
    return path


def test_measured_places_cost_what_the_table_says(saved_table: Path) -> None:
    """Number for number, at every measured batch and context."""
    table, whole = CostTable.load(saved_table), load_table(saved_table)
    for stairs in whole.staircases:
        price = table.price(stairs.batch, stairs.context)
        np.testing.assert_array_equal(price.step_cost_us, stairs.step_cost_us)
        np.testing.assert_array_equal(price.low_us, stairs.low_us)
        assert price.marks == ()


def test_places_between_cost_what_the_fit_says(
    saved_table: Path, fitted: Fitted
) -> None:
    """Between contexts, from the fitted model at the table's union growth."""
    whole = load_table(saved_table)
    tokens = np.arange(1.0, 17.0)
    union = np.array(whole.union_growth.union)[1:17]
    costs = CostTable.load(saved_table).step_cost_us(batch=1, context=150)
    expected = fitted.cost.forward.step_cost_us(tokens, union, 1, 150)
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
    experts = int(np.ceil(table.union_growth.max()))
    (batch, context), *_ = table.prices
    fitted = table._fitted(batch, batch, context, ())
    capped = table.within_budget(experts).price(batch, context)
    np.testing.assert_allclose(capped.step_cost_us, fitted.step_cost_us)


def test_a_smaller_budget_never_costs_more(saved_table: Path) -> None:
    """And costs less where more experts would have been woken."""
    table = CostTable.load(saved_table)
    (batch, context), *_ = table.prices
    dear, cheap = (
        table.within_budget(experts).step_cost_us(batch, context)
        for experts in (int(np.ceil(table.union_growth.max())), 8)
    )
    assert (cheap <= dear).all()
    assert cheap[-1] < dear[-1]


def test_clamping_is_marked(saved_table: Path) -> None:
    """A context beyond the last is priced there, and says so."""
    table = CostTable.load(saved_table)
    price = table.price(1, 300, outside="clamp")
    np.testing.assert_array_equal(price.step_cost_us, table.step_cost_us(1, 256))
    assert price.marks == ("context 300 priced as 256",)
    many = table.price(3, 64, outside="clamp")
    assert many.marks == ("batch 3 priced as 2",)
    assert many.step_cost_us[3] == many.step_cost_us[0]


def test_the_price_is_near_what_was_measured(saved_table: Path) -> None:
    """The known cost of the run, scaled from two layers to four, within 2 %."""
    whole, table = load_table(saved_table), CostTable.load(saved_table)
    union = whole.union_growth.union[8]
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
    running = {**asdict(load_table(saved_table).key), "threads": 3}
    assert CostTable.load(saved_table, running).marks == ()


def test_another_key_is_refused_with_the_difference(saved_table: Path) -> None:
    """Named field by field, with the command that would measure it."""
    running = {**asdict(load_table(saved_table).key), "engine_version": "2"}
    with pytest.raises(TableError, match=r"engine_version: 2 here, 1 there.*profile"):
        CostTable.load(saved_table, running)


def test_the_nearest_is_taken_only_if_told_and_marked(saved_table: Path) -> None:
    """Every price then carries the difference."""
    running = {**asdict(load_table(saved_table).key), "gpu": "another"}
    table = CostTable.load(saved_table, running, allow_nearest=True)
    assert table.price(1, 64).marks == ("gpu: another here, a test there",)


def test_a_changed_byte_is_refused(saved_table: Path) -> None:
    """By the hash."""
    saved_table.write_text(saved_table.read_text().replace("a test", "a best"))
    with pytest.raises(TableError, match="does not match its sha256"):
        CostTable.load(saved_table)


def test_a_newer_schema_is_refused(saved_table: Path) -> None:
    """Even when it is signed."""
    newer = signed(saved_table, schema="evict-cost-table/3")
    with pytest.raises(TableError, match="upgrade evict-profile"):
        CostTable.load(newer)


@pytest.mark.parametrize("field", ["key", "staircases", "fit", "provenance", "model"])
def test_a_signed_file_without_a_field_is_refused(
    saved_table: Path, field: str
) -> None:
    """Naming the file, not with a traceback."""
    with pytest.raises(TableError, match="no whole cost table"):
        CostTable.load(signed(saved_table, **{field: {}}))


def test_a_workload_is_read_as_it_was_put_in(workload_table: Path) -> None:
    """Acceptance, drafting, and prices between places at the batch's growth."""
    table, whole = CostTable.load(workload_table), load_table(workload_table)
    assert table.acceptance.scores == ACCEPTANCE.scores
    assert table.acceptance.acceptances == ACCEPTANCE.acceptances
    assert table.acceptance.continuation == ACCEPTANCE.continuation
    assert asdict(table.acceptance.links) == asdict(ACCEPTANCE.links)
    for own, theirs in zip(table.drafting.batches, DRAFTING.batches, strict=True):
        assert asdict(own) == asdict(theirs)
    for batch in (1, 2):
        between = table.step_cost_us(batch, 64.5)[: 16 * batch + 1]
        measured = whole.step_cost_us(batch, 64)
        np.testing.assert_allclose(between, measured, rtol=1e-3)


def test_a_table_of_the_schema_before_knows_no_drafter(saved_table: Path) -> None:
    """It prices as it did."""
    growth = json.loads(saved_table.read_text())["union_growth"]
    del growth["by_batch"]
    before = CostTable.load(saved_table).step_cost_us(1, 100)
    old = signed(saved_table, schema="evict-cost-table/1", union_growth=growth)
    table = CostTable.load(old)
    assert (table.acceptance, table.drafting) == (None, None)
    np.testing.assert_array_equal(table.step_cost_us(1, 100), before)


def test_an_acceptance_without_links_is_read(workload_table: Path) -> None:
    """As a table of this schema held it before there were any."""
    acceptance = json.loads(workload_table.read_text())["acceptance"]
    del acceptance["links"]
    table = CostTable.load(signed(workload_table, acceptance=acceptance))
    assert table.acceptance.links is None
    assert load_table(workload_table).acceptance == replace(ACCEPTANCE, links=None)


@pytest.mark.parametrize("field", ["acceptance", "drafting"])
def test_a_workload_that_is_none_is_refused(workload_table: Path, field: str) -> None:
    """Naming the file."""
    document = json.loads(workload_table.read_text())[field]
    wrong = {**document, "acceptances": [[0.0, 1.0]], "batches": []}
    with pytest.raises(TableError, match="no whole cost table"):
        CostTable.load(signed(workload_table, **{field: wrong}))


def test_the_key_is_the_tables_own() -> None:
    """Both readers of the schema know the same fields."""
    assert tuple(field.name for field in fields(Key)) == KEY


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """With its path."""
    with pytest.raises(TableError, match=r"none\.json: cannot be read"):
        CostTable.load(tmp_path / "none.json")
