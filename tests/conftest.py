"""Fixtures that tests of several modules share."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from evict_profile.fit.export import export_workload, make_table, with_workload
from evict_profile.fit.fitted import Fitted, file_sha256, fit_run
from evict_profile.table import CostTable
from tests.factories import ACCEPTANCE, ACTIVATION, DRAFTING, write_run

# Kernels run without a GPU in Triton's interpreter. Triton looks when it is imported,
# which whatever test comes first may do, so it is said before any test is read.
os.environ.setdefault("TRITON_INTERPRET", "1")

# A first call may load a library, and other tests run beside this one; how long it
# takes is no property of the code.
settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    """A run with a known cost, fitted."""
    return fit_run(write_run(tmp_path_factory.mktemp("known")))


@pytest.fixture
def saved_table(fitted: Fitted, tmp_path: Path) -> Path:
    """A table on disk with its samples beside it."""
    path = tmp_path / "1.0.0.json"
    samples = path.with_suffix(".parquet")
    fitted.frame.to_parquet(samples, index=False)
    make_table(fitted, file_sha256(samples)).save(path)
    return path


@pytest.fixture
def workload_table(saved_table: Path) -> Path:
    """The next version of `saved_table`, with what a drafter brings in it."""
    table = with_workload(CostTable.load(saved_table), ACCEPTANCE, ACTIVATION, DRAFTING)
    return export_workload(table, saved_table)[1]
