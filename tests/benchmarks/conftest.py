"""A shipped table of the small world, with its acceptance, activation and drafting."""

import pytest

from evict_profile.table import CostTable
from tests.shipped import tracked


@pytest.fixture(scope="session")
def informed_table():
    (path,) = tracked("cost_tables/intel-*/small-world-*.json")
    return CostTable.load(path)
