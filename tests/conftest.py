"""Fixtures that tests of several modules share."""

import pytest

from evict_profile.fit.fitted import Fitted, fit_run
from tests.known_run import write_run


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    """A run with a known cost, fitted."""
    return fit_run(write_run(tmp_path_factory.mktemp("known")))
