"""From a fitted run to a table on disk."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.cost_model import padded_tokens
from evict_profile.errors import GateError, StoreError
from evict_profile.fit.export import export_table
from evict_profile.fit.fitted import Fitted, file_sha256, fit_run
from evict_profile.sweep.store import Store
from evict_profile.table import CostTable
from tests.factories import write_run


def test_an_exported_table_loads_as_it_was_made(fitted: Fitted, tmp_path: Path) -> None:
    """Round trip, under the path that its key gives."""
    table, path = export_table(fitted, tmp_path)
    assert CostTable.load(path) == table
    assert path.relative_to(tmp_path) == Path("a-test/tiny/scripted/1.0.0.json")


def test_the_samples_lie_beside_and_match_their_hash(
    fitted: Fitted, tmp_path: Path
) -> None:
    """Anyone can refit the table from what is beside it."""
    table, path = export_table(fitted, tmp_path)
    samples = path.with_suffix(".parquet")
    assert file_sha256(samples) == table.provenance.samples_sha256


def test_exporting_again_is_the_next_patch(fitted: Fitted, tmp_path: Path) -> None:
    """A table is never overwritten."""
    first = export_table(fitted, tmp_path)[1]
    second = export_table(fitted, tmp_path)[1]
    assert (first.stem, second.stem) == ("1.0.0", "1.0.1")


def test_the_staircase_rises_and_starts_at_its_roots(
    fitted: Fitted, tmp_path: Path
) -> None:
    """One entry a token count, flat below the batch, never falling, in its interval."""
    table, _ = export_table(fitted, tmp_path)
    stairs = table.staircase(batch=2, context=64)
    costs = np.array(stairs.step_cost_us)
    assert len(costs) == 2 * 16 + 1
    assert costs[0] == costs[1] == costs[2]
    assert np.all(np.diff(costs) >= 0.0)
    assert np.all(np.array(stairs.low_us) <= np.array(stairs.high_us))


def test_a_failed_gate_stops_the_export(fitted: Fitted, tmp_path: Path) -> None:
    """Nothing is written, and every failed gate is named."""
    faster = replace(fitted.provenance, bandwidth_gbps=900.0)
    worse = replace(fitted, provenance=faster)
    with pytest.raises(GateError, match="roofline slope"):
        export_table(worse, tmp_path)
    assert not list(tmp_path.iterdir())


@given(st.integers(0, 200), st.integers(1, 4))
def test_padding_takes_the_smallest_rung_that_holds(asked: int, batch: int) -> None:
    """Cost is read at the padded size, so that filling a tier is free."""
    ladder = [1, 2, 4, 8, 16, 32, 64]
    ran = padded_tokens(np.array([asked]), batch, ladder)[0]
    fits = [r * batch for r in ladder if r * batch >= max(asked, batch)]
    assert ran == (fits[0] if fits else ladder[-1] * batch)


def test_too_few_cells_are_refused(tmp_path: Path) -> None:
    """A fit of nothing says what it needs."""
    store = Store(tmp_path / "empty")
    store.create(write_run(tmp_path / "whole").header())
    with pytest.raises(StoreError, match="a fit needs"):
        fit_run(store)
