"""A workload put into a table moves its prices to the unions that were measured."""

from pathlib import Path

import numpy as np
import pytest

from evict_profile.errors import TableError
from evict_profile.fit.fitted import Fitted, file_sha256
from evict_profile.fit.workload import export_workload, with_workload
from evict_profile.table import ActivationCurve, CostTable
from tests.factories import ACCEPTANCE, DRAFTING, GROWTH


@pytest.mark.parametrize(("batch", "slope"), [(1, 0.25), (2, 0.25)])
def test_prices_are_read_at_the_measured_growth(
    saved_table: Path, fitted: Fitted, batch: int, slope: float
) -> None:
    """Of the batch, or of the nearest in ratio."""
    table = with_workload(CostTable.load(saved_table), ACCEPTANCE, GROWTH, DRAFTING)
    tokens = np.arange(float(batch), 17.0)
    union = 4.0 + slope * (tokens - 1.0)
    priced = fitted.cost.forward.price(tokens, union, 64, batch)
    stairs = table.staircase(batch, 64)
    np.testing.assert_allclose(stairs.step_cost_us[batch:17], priced, atol=0.06)


def test_intervals_keep_their_relative_width(saved_table: Path) -> None:
    """The replicates behind them are not in a table."""
    before = CostTable.load(saved_table)
    after = with_workload(before, ACCEPTANCE, GROWTH, DRAFTING)
    for old, new in zip(before.staircases, after.staircases, strict=True):
        for bound in ("low_us", "high_us"):
            one, other = (
                np.array(getattr(stairs, bound)) / stairs.step_cost_us
                for stairs in (old, new)
            )
            np.testing.assert_allclose(one, other, rtol=1e-4)


def test_the_same_growth_changes_no_price(saved_table: Path) -> None:
    """What a table says does not depend on how it came to say so."""
    table = CostTable.load(saved_table)
    again = with_workload(table, None, table.activation, None)
    for old, new in zip(table.staircases, again.staircases, strict=True):
        np.testing.assert_allclose(old.step_cost_us, new.step_cost_us, atol=0.11)


def test_the_next_version_stands_beside_with_its_samples(workload_table: Path) -> None:
    """It holds all that was put in, and can be refitted alone."""
    table = CostTable.load(workload_table)
    assert (workload_table.stem, table.version) == ("1.0.1", "1.0.1")
    assert (table.acceptance, table.drafting) == (ACCEPTANCE, DRAFTING)
    assert table.activation == GROWTH
    samples = workload_table.with_suffix(".parquet")
    assert file_sha256(samples) == table.provenance.samples_sha256


def test_a_tree_of_tables_has_a_place_for_it(saved_table: Path, tmp_path: Path) -> None:
    """By the key, as an export has."""
    table = CostTable.load(saved_table)
    _, path = export_workload(table, saved_table, tmp_path / "tables")
    assert path.relative_to(tmp_path / "tables") == table.relative_path
    assert path.with_suffix(".parquet").is_file()


def test_missing_samples_are_refused(saved_table: Path) -> None:
    """A table without its samples would be the first that nobody can refit."""
    saved_table.with_suffix(".parquet").unlink()
    with pytest.raises(TableError, match=r"parquet: is missing"):
        export_workload(CostTable.load(saved_table), saved_table)


def test_a_curve_that_ends_too_early_is_refused(saved_table: Path) -> None:
    """With what to do instead."""
    short = ActivationCurve("short", False, (0.0, 4.0))
    with pytest.raises(TableError, match="ends at 1 tokens"):
        with_workload(CostTable.load(saved_table), None, short, None)
