"""A table whose staircases tests may replace."""

import pytest

from evict_profile.fit.export import make_table
from evict_profile.fit.fitted import Fitted
from evict_profile.table import CostTable


@pytest.fixture(scope="session")
def table(fitted: Fitted) -> CostTable:
    """The table of the known run: batches 1 and 2, contexts 64 and 256."""
    return make_table(fitted, samples_sha256="")
