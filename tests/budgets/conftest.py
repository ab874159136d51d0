"""A synthetic recording, and a table that prices it."""

import pytest

from evict_profile.budgets.load import record_of
from evict_profile.budgets.prices import RecordPrices
from evict_profile.fit.export import make_table
from evict_profile.table import CostTable
from tests.budgets.synthetic import typical, write


@pytest.fixture(scope="session")
def recording():
    """Every rule at three budgets, on two workloads of six prompts."""
    return record_of(typical(), "synthetic")


@pytest.fixture(scope="session")
def recording_file(tmp_path_factory):
    """The same on disk."""
    return write(tmp_path_factory.mktemp("made") / "budgets.parquet", typical())


@pytest.fixture(scope="session")
def table_file(fitted, tmp_path_factory):
    """Prices and nothing else."""
    path = tmp_path_factory.mktemp("table") / "1.0.0.json"
    make_table(fitted, "0" * 64).save(path)
    return path


@pytest.fixture(scope="session")
def table(table_file):
    return CostTable.load(table_file)


@pytest.fixture(scope="session")
def prices(table, recording):
    return RecordPrices(table, recording)
