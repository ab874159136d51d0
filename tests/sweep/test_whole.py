"""A sweep of whole forwards: one part, and clocks of the steps around them."""

import numpy as np
import pytest

from evict_profile.errors import DataError, MeasurementError
from evict_profile.fit.export import export_table
from evict_profile.fit.fitted import fit_run
from evict_profile.records import replace
from evict_profile.report.cost_page import cost_page
from evict_profile.report.data import View
from evict_profile.runtime import CostTable
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.store import Store
from tests.sweep.conftest import swept

LAYERS = 4
"""MoE layers of the model `tiny`."""


@pytest.fixture(autouse=True)
def whole_forwards(monkeypatch):
    monkeypatch.setenv("SCRIPTED_WHOLE", str(LAYERS))


@pytest.fixture(scope="module")
def fitted(spec, model, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCRIPTED_WHOLE", str(LAYERS))
        folder = tmp_path_factory.mktemp("whole-forwards")
        return fit_run(swept(replace(spec, whole=True), model, folder))


def journal_of(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("clock")]


def test_the_grid_has_no_cells_beside_the_layers(spec, model):
    """They are in each forward; all else is as in a sweep of parts."""
    parts, whole = (make_grid(replace(spec, whole=w), model) for w in (False, True))
    assert [c for c in parts.cells if c.part == "layers"] == list(whole.cells)


@pytest.mark.slow
def test_whole_forwards_become_a_table(fitted, tmp_path):
    """Every gate passes, the other part costs nothing, runtime and report take it."""
    table, path = export_table(fitted, tmp_path / "tables")
    assert all(gate.passed for gate in table.gates)
    assert [term.us_per_unit for term in table.fit.non_moe] == [0.0]
    costs = CostTable.load(path).step_cost_us(2, 64)
    np.testing.assert_array_equal(costs, table.step_cost_us(2, 64))
    between = CostTable.load(path).step_cost_us(2, 64.5, outside="clamp")
    np.testing.assert_allclose(between, costs, rtol=0.01)
    assert "MoE layers" in cost_page(View(fitted, table))


def test_layers_are_not_taken_for_the_whole(sweep, store, tmp_path, monkeypatch):
    """A runner and a sweep must mean the same; the message says what to set."""
    with pytest.raises(MeasurementError, match="whole forwards; set 'whole: true'"):
        sweep(Store(tmp_path / "parts"))
    monkeypatch.delenv("SCRIPTED_WHOLE")
    with pytest.raises(
        MeasurementError, match="layers and the rest apart; set 'whole: false'"
    ):
        sweep(Store(tmp_path / "whole"), whole=True)


def test_some_layers_are_not_the_whole(sweep, store, tmp_path, monkeypatch):
    """Nothing is scaled up: what is not measured is not in the table."""
    monkeypatch.setenv("SCRIPTED_WHOLE", "2")
    with pytest.raises(MeasurementError, match=r"hold all 4 MoE layers.*opened 2"):
        sweep(Store(tmp_path / "run"), whole=True)


def test_each_batch_gets_one_clock(sweep, store, tmp_path, monkeypatch):
    """Asked when no cell is left or the time is up, kept beside the samples, and not
    asked again."""
    journal = tmp_path / "journal"
    monkeypatch.setenv("RUNNER_JOURNAL", str(journal))
    assert not sweep(store, whole=True, checks=40)
    assert [clock.batch for clock in store.clocks()] == [1, 2]
    assert sweep(store, whole=True)
    assert sweep(store, whole=True)
    assert journal_of(journal) == ["clock 1", "clock 2"]


def test_clocks_become_the_tables_drafting(fitted, tmp_path):
    """Brought to the speed of the samples, and said to be of no workload.

    A machine that had half its speed meanwhile drafts in half the time.
    """
    made = replace(fitted.provenance, reference_us=100.0)
    one, two = fitted.clocks
    half = replace(two, reference_us=200.0)
    slowed = replace(fitted, provenance=made, clocks=(one, half))
    table, path = export_table(slowed, tmp_path)
    assert CostTable.load(path).drafting == table.drafting
    assert table.drafting is not None
    assert table.drafting.workload.startswith("no text")
    one, two = table.drafting.batches
    assert (one.draft_us, two.draft_us) == ((0.0, 100.0, 300.0), (0.0, 100.0, 300.0))
    assert (two.batch, two.fixed_us, two.plain_fixed_us) == (2, 25.0, 10.0)


def test_a_runner_without_clocks_is_no_end(sweep, store, tmp_path, monkeypatch):
    monkeypatch.setenv("SCRIPTED_MUTE", "1")
    assert sweep(store, whole=True)
    assert export_table(fit_run(store), tmp_path / "tables")[0].drafting is None


def test_damaged_clocks_are_named(tmp_path):
    store = Store(tmp_path)
    (store.folder / "clocks.json").write_text("[{", encoding="utf-8")
    with pytest.raises(DataError, match=r"clocks\.json: cannot be read.*delete it"):
        store.clocks()
