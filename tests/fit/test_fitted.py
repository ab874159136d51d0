"""A report from a table alone."""

from pathlib import Path

import numpy as np
import pytest

from evict_profile.errors import TableError
from evict_profile.fit.fitted import Fitted, fitted_of_table, part_us
from evict_profile.fit.gates import judge
from evict_profile.io import data_root
from evict_profile.report.cost_page import page
from evict_profile.report.data import View


def test_cost_is_the_tables_own(saved_table: Path, fitted: Fitted) -> None:
    """Nothing is lost on the way through the file."""
    rebuilt, _ = fitted_of_table(saved_table)
    ours, theirs = (part_us(f.cost, fitted.points.cells) for f in (rebuilt, fitted))
    np.testing.assert_array_equal(ours, theirs)


def test_anchor_and_gates_are_found_again(saved_table: Path, fitted: Fitted) -> None:
    """The sweep in the table is enough to know the anchor and judge anew."""
    rebuilt, table = fitted_of_table(saved_table)
    assert rebuilt.anchor == fitted.anchor
    assert judge(rebuilt) == table.gates


def test_page_is_that_of_the_run(saved_table: Path, fitted: Fitted) -> None:
    """A table alone tells all that the run's folder tells."""
    rebuilt, table = fitted_of_table(saved_table)
    assert page(View(rebuilt, table)) == page(View(fitted, table))


def test_missing_samples_are_refused(saved_table: Path) -> None:
    """The message names the file and the fix."""
    saved_table.with_suffix(".parquet").unlink()
    with pytest.raises(TableError, match=r"1\.0\.0\.parquet: is missing.*put the"):
        fitted_of_table(saved_table)


def test_changed_samples_are_refused(saved_table: Path, fitted: Fitted) -> None:
    """Samples of another run are not drawn under this table's name."""
    samples = saved_table.with_suffix(".parquet")
    fitted.frame.iloc[:-1].to_parquet(samples, index=False)
    with pytest.raises(TableError, match=r"1\.0\.0\.parquet: .*sha256.*fetch"):
        fitted_of_table(saved_table)


def test_samples_of_a_shipped_table_are_read() -> None:
    """They were stored when the part "non_moe" was called "ends"."""
    shipped = (data_root() / "cost_tables").rglob("torch-moe/1.0.0.json")
    fitted, table = fitted_of_table(next(shipped))
    assert len(fitted.points) == table.provenance.cells
    assert len(fitted.points.where("non_moe", "natural")) == 7
