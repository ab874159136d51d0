"""A shipped table of the small world, with its acceptance, activation and drafting."""

import pytest

from evict_profile.table import CostTable
from tests.shipped import tracked


@pytest.fixture(scope="session")
def informed_table():
    (path,) = tracked("examples/small_world/cost_tables/intel-*.json")
    return CostTable.load(path)
