"""Files that a command writes, the lock of a folder, and shares."""

import fcntl
import os
from pathlib import Path

import pytest

from evict_profile.errors import ConfigError, DataError
from evict_profile.io import (
    check_folder,
    check_outputs,
    check_writable,
    parse_share,
    regular,
    sole_writer,
    write_text,
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
    check_outputs([page], [given, parts])
    with pytest.raises(DataError, match=says):
        check_outputs([page, tmp_path / name], [given, parts])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (".", "is a folder; name a file in it"),
        ("taken/a.html", "cannot be written: Not a directory; choose another place"),
        (300 * "a", "cannot be written: File name too long"),
        ("pipe", "is a device or a pipe"),
    ],
)
def test_a_place_that_takes_no_file_is_refused(tmp_path, name, says):
    (tmp_path / "taken").touch()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=says):
        check_writable(tmp_path / name)


def test_a_pipe_is_not_read(tmp_path):
    """A read of it would wait. A folder, or what is not there, has its own errors."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="a pipe or a device"):
            regular(path)
    for path in (tmp_path, tmp_path / "none"):
        assert regular(path) == path


def test_finding_out_leaves_nothing_behind(tmp_path):
    """A command that ends with a sentence afterwards has made no folder."""
    check_writable(tmp_path / "new" / "deep" / "page.html")
    check_folder(tmp_path / "tables")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["file", "file/deep"])
def test_a_file_is_no_folder_to_put_files_into(tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written: Not a directory"):
        check_folder(tmp_path / place)


def test_a_rename_reaches_the_disk_with_its_file(tmp_path, monkeypatch):
    """The file before it is renamed, the folder after: a power cut loses neither."""
    flushed, path = [], tmp_path / "a.json"

    def fsync(handle):
        place = Path(f"/proc/self/fd/{handle}").readlink()
        flushed.append((place, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_text("{}", path)
    [(file, before), (folder, after)] = flushed
    assert (file.parent, folder) == (tmp_path, tmp_path)
    assert (before, after) == (False, True)


def test_a_second_writer_is_refused_while_the_first_is_in(tmp_path):
    """The lock is the first one's to delete; nothing of either is left."""
    with sole_writer(tmp_path):
        for _ in range(2):
            with (
                pytest.raises(DataError, match="another process is writing into it"),
                sole_writer(tmp_path),
            ):
                pass
    with sole_writer(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_another_s_lock_in_a_folder_made_anew_stays(tmp_path):
    """The first one's folder was deleted while it was in."""
    with sole_writer(tmp_path):
        (tmp_path / "lock").unlink()
        (tmp_path / "lock").touch()
    assert (tmp_path / "lock").exists()


def test_an_heir_of_the_lock_keeps_others_out(tmp_path):
    """A child that was given the file holds it when its parent was killed.

    What a killed process itself left is no lock any more.
    """
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        heir = os.dup(held.fileno())
    with pytest.raises(DataError, match="another process"), sole_writer(tmp_path):
        pass
    os.close(heir)
    with sole_writer(tmp_path):
        pass


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    place = tmp_path / "file"
    with pytest.raises(DataError, match="lock: cannot be written"), sole_writer(place):
        pass


def test_parts_count_from_one_for_the_user():
    assert parse_share("--part", "2/4") == (1, 4)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/2/3", "", "-1/2"])
def test_what_is_no_part_is_refused(text):
    with pytest.raises(ConfigError, match=r"--part .*: must be i/n"):
        parse_share("--part", text)
