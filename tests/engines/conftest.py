"""Models that servers load."""

import pytest

from tests.engines.checkpoint import write_models


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder
