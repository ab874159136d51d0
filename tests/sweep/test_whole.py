"""A sweep of whole forwards: one part, and clocks of the steps around them."""

from pathlib import Path

import numpy as np
import pytest

from evict_profile.config import ModelSpec, SweepSpec
from evict_profile.errors import RunnerError, StoreError
from evict_profile.fit.export import export_table
from evict_profile.fit.fitted import fit_run
from evict_profile.records import replace
from evict_profile.report.cost_page import page
from evict_profile.report.data import View
from evict_profile.runtime import CostTable
from evict_profile.sweep.grid import make_grid
from evict_profile.sweep.store import Store, merge
from tests.sweep.conftest import Sweeping

LAYERS = 4
"""MoE layers of the model `tiny`."""


@pytest.fixture(autouse=True)
def whole_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripted runner times whole forwards of all layers."""
    monkeypatch.setenv("SCRIPTED_WHOLE", str(LAYERS))


def journal_of(path: Path) -> list[str]:
    """The batches whose clock was asked for, in order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("clock")]


def test_the_grid_has_no_cells_beside_the_layers(
    spec: SweepSpec, model: ModelSpec
) -> None:
    """They are in each forward; all else is as in a sweep of parts."""
    parts, whole = (make_grid(replace(spec, whole=w), model) for w in (False, True))
    assert [c for c in parts.cells if c.part == "layers"] == list(whole.cells)


@pytest.mark.slow
def test_whole_forwards_become_a_table(
    sweep: Sweeping, store: Store, tmp_path: Path
) -> None:
    """Every gate passes, the other part costs nothing, runtime and report take it."""
    assert sweep(store, whole=True)
    fitted = fit_run(store)
    table, path = export_table(fitted, tmp_path / "tables")
    assert all(gate.passed for gate in table.gates)
    assert [term.us_per_unit for term in table.fit.non_moe] == [0.0]
    costs = CostTable.load(path).step_cost_us(2, 64)
    np.testing.assert_array_equal(costs, table.step_cost_us(2, 64))
    between = CostTable.load(path).step_cost_us(2, 64.5, outside="clamp")
    np.testing.assert_allclose(between, costs, rtol=0.01)
    assert "MoE layers" in page(View(fitted, table))


def test_layers_are_not_taken_for_the_whole(
    sweep: Sweeping, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner and a sweep must mean the same; the message says what to set."""
    with pytest.raises(RunnerError, match="times whole forwards; set 'whole: true'"):
        sweep(Store(tmp_path / "parts"))
    monkeypatch.delenv("SCRIPTED_WHOLE")
    with pytest.raises(
        RunnerError, match="layers and the rest apart; set 'whole: false'"
    ):
        sweep(Store(tmp_path / "whole"), whole=True)


def test_some_layers_are_not_the_whole(
    sweep: Sweeping, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is scaled up: what is not measured is not in the table."""
    monkeypatch.setenv("SCRIPTED_WHOLE", "2")
    with pytest.raises(RunnerError, match=r"hold all 4 MoE layers.*opened 2"):
        sweep(Store(tmp_path / "run"), whole=True)


def test_each_batch_gets_one_clock(
    sweep: Sweeping, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked when no cell is left or the time is up, kept beside the samples, and not
    asked again."""
    journal = tmp_path / "journal"
    monkeypatch.setenv("RUNNER_JOURNAL", str(journal))
    assert not sweep(store, whole=True, checks=40)
    assert [clock.batch for clock in store.clocks()] == [1, 2]
    assert sweep(store, whole=True)
    assert sweep(store, whole=True)
    assert journal_of(journal) == ["clock 1", "clock 2"]


def test_clocks_become_the_tables_drafting(
    sweep: Sweeping, store: Store, tmp_path: Path
) -> None:
    """As they were answered, and said to be of no workload."""
    sweep(store, whole=True)
    table, path = export_table(fit_run(store), tmp_path / "tables")
    assert table.drafting is not None
    assert table.drafting.workload.startswith("none")
    second = table.drafting.batches[1]
    assert (second.batch, second.draft_us) == (2, (0.0, 200.0, 600.0))
    assert (second.fixed_us, second.plain_fixed_us) == (50.0, 20.0)
    assert CostTable.load(path).drafting is not None


def test_clocks_are_brought_to_the_speed_of_the_samples(
    sweep: Sweeping, store: Store, tmp_path: Path
) -> None:
    """A machine that had half its speed meanwhile drafts in half the time."""
    sweep(store, whole=True)
    fitted = fit_run(store)
    made = replace(fitted.provenance, reference_us=100.0)
    slow = tuple(replace(clock, reference_us=200.0) for clock in fitted.clocks)
    table, _ = export_table(replace(fitted, provenance=made, clocks=slow), tmp_path)
    assert table.drafting is not None
    assert table.drafting.batches[0].draft_us == (0.0, 50.0, 150.0)


def test_a_runner_without_clocks_is_no_end(
    sweep: Sweeping, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep finishes, and the table knows no drafting."""
    monkeypatch.setenv("SCRIPTED_MUTE", "1")
    assert sweep(store, whole=True)
    assert export_table(fit_run(store), tmp_path / "tables")[0].drafting is None


def test_shards_bring_their_clocks_along(
    sweep: Sweeping, store: Store, tmp_path: Path
) -> None:
    """One a batch is kept, whichever shard took it."""
    shards = [Store(tmp_path / f"{i}") for i in (1, 2)]
    for i, store in enumerate(shards, start=1):
        sweep(store, shard=f"{i}/2", whole=True)
    merged = Store(tmp_path / "merged")
    merge(shards, merged)
    assert [clock.batch for clock in merged.clocks()] == [1, 2]


def test_damaged_clocks_are_named(tmp_path: Path) -> None:
    """With the file, and the way out."""
    store = Store(tmp_path)
    (store.folder / "clocks.json").write_text("[{", encoding="utf-8")
    with pytest.raises(StoreError, match=r"clocks\.json: cannot be read.*delete it"):
        store.clocks()
