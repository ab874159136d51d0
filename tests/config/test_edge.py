"""Files become mappings, or one sentence."""

from pathlib import Path

import pytest

from evict_profile.config.edge import read_mapping
from evict_profile.errors import ConfigError


@pytest.mark.parametrize("name", ["deep.json", "deep.yaml"])
def test_a_file_too_deep_to_read_is_refused(tmp_path: Path, name: str) -> None:
    """No parser goes down without end."""
    path = tmp_path / name
    path.write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=rf"{name}: is not valid"):
        read_mapping(path)
