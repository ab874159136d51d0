"""A shipped table of the small world, with its acceptance, activation and drafting."""

import pytest

from evict_profile.io import data_root
from evict_profile.table import CostTable


@pytest.fixture(scope="session")
def informed_table():
    (path,) = (data_root() / "cost_tables").glob("intel-*/small-world-*/*/*.json")
    return CostTable.load(path)
