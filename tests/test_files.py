"""Files that a command writes."""

from pathlib import Path

import pytest

from evict_profile.errors import StoreError
from evict_profile.files import require_outputs


@pytest.mark.parametrize("name", ["a.parquet", "./a.parquet", "b.html"])
def test_an_output_is_no_input_and_named_once(tmp_path: Path, name: str) -> None:
    """Whatever would be overwritten is refused before any work."""
    given, page = tmp_path / "a.parquet", tmp_path / "b.html"
    require_outputs([page], [given])
    with pytest.raises(StoreError, match=r"named for something else already"):
        require_outputs([page, tmp_path / name], [given])
