"""The wheel that tests read; made once."""

from pathlib import Path

import pytest

from tests.sources.wheel import write_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wheel(tmp_path_factory.mktemp("public") / "wheel")
