"""Files that a command writes."""

import os
from pathlib import Path

import pytest

from evict_profile.errors import StoreError
from evict_profile.files import (
    require_folder,
    require_outputs,
    require_writable,
    write_atomically,
)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a.parquet", r"would change .*a\.parquet, which this command reads"),
        ("./a.parquet", r"would change .*a\.parquet, which this command reads"),
        ("b.html", "is named twice"),
        ("parts/1.parquet", r"would change .*parts, which this command reads"),
        ("parts/new.parquet", r"would change .*parts, which this command reads"),
    ],
)
def test_an_output_is_no_input_and_named_once(
    tmp_path: Path, name: str, says: str
) -> None:
    """Whatever would be overwritten, or read as a part, is refused before any work."""
    given, parts = tmp_path / "a.parquet", tmp_path / "parts"
    page = tmp_path / "b.html"
    parts.mkdir()
    (parts / "1.parquet").touch()
    require_outputs([page], [given, parts])
    with pytest.raises(StoreError, match=says):
        require_outputs([page, tmp_path / name], [given, parts])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (".", "is a folder; name a file in it"),
        ("taken/a.html", "cannot be written: Not a directory; choose another place"),
        (300 * "a", "cannot be written: File name too long"),
        ("pipe", "is a device or a pipe"),
    ],
)
def test_a_place_that_takes_no_file_is_refused(
    tmp_path: Path, name: str, says: str
) -> None:
    """In one sentence, whatever is in the way."""
    (tmp_path / "taken").touch()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match=says):
        require_writable(tmp_path / name)


def test_finding_out_leaves_nothing_behind(tmp_path: Path) -> None:
    """A command that ends with a sentence afterwards has made no folder."""
    require_writable(tmp_path / "new" / "deep" / "page.html")
    require_folder(tmp_path / "tables")
    assert not list(tmp_path.iterdir())


def test_a_file_is_no_folder_to_put_files_into(tmp_path: Path) -> None:
    """Nor can one be made in it."""
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "deep"):
        with pytest.raises(StoreError, match="cannot be written: Not a directory"):
            require_folder(folder)


def test_the_folder_of_a_file_is_made_with_it(tmp_path: Path) -> None:
    """Whoever asked for the place need not."""
    path = tmp_path / "new" / "deep" / "numbers.json"
    write_atomically(path, lambda place: place.write_text("{}"))
    assert path.read_text() == "{}"
