"""One process at a time in a folder of measurements."""

import fcntl
import os
from pathlib import Path

import pytest

from evict_profile.errors import StoreError
from evict_profile.lock import sole_writer


def test_a_second_writer_is_refused_while_the_first_is_in(tmp_path: Path) -> None:
    """And let in when the first has gone; then nothing of either is left."""
    with (
        sole_writer(tmp_path),
        pytest.raises(StoreError, match="another process is writing into it"),
        sole_writer(tmp_path),
    ):
        pass
    with sole_writer(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_a_refused_writer_does_not_open_the_door(tmp_path: Path) -> None:
    """The lock is the first one's to delete."""
    with sole_writer(tmp_path):
        for _ in range(2):
            with pytest.raises(StoreError), sole_writer(tmp_path):
                pass


def test_another_s_lock_in_a_folder_made_anew_stays(tmp_path: Path) -> None:
    """The first one's folder was deleted while it was in."""
    with sole_writer(tmp_path):
        (tmp_path / "lock").unlink()
        (tmp_path / "lock").touch()
    assert (tmp_path / "lock").exists()


def test_an_heir_of_the_lock_keeps_others_out(tmp_path: Path) -> None:
    """A child that was given the file holds it when its parent was killed."""
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        heir = os.dup(held.fileno())
    with pytest.raises(StoreError, match="another process"), sole_writer(tmp_path):
        pass
    os.close(heir)
    with sole_writer(tmp_path):
        pass


def test_a_killed_process_keeps_nobody_out(tmp_path: Path) -> None:
    """What it left is no lock any more."""
    (tmp_path / "lock").touch()
    with sole_writer(tmp_path):
        assert (tmp_path / "lock").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """With the system's reason and the fix."""
    with (
        pytest.raises(StoreError, match="cannot be written: No such file"),
        sole_writer(tmp_path / "none"),
    ):
        pass
