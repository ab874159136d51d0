"""Files that are there whole or not at all, and folders that say why they are not."""

import errno
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evict_profile.errors import StoreError


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, or say in one sentence why that failed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"{folder}: cannot be created: {error.strerror}; choose another folder"
        ) from error


def require_writable(path: Path) -> None:
    """Find out before long work, not after it, that its answer cannot be kept.

    Raises:
        StoreError: its folder cannot be made or written, or the path is no file's.
    """
    _require_room(path.parent, path)
    if path.is_dir():
        raise StoreError(f"{path}: is a folder; name a file in it")
    if path.exists() and not path.is_file():
        raise StoreError(f"{path}: is a device or a pipe; name a file")


def require_folder(folder: Path) -> None:
    """Find out before long work that files cannot be put into a folder.

    Raises:
        StoreError: it cannot be made or written.
    """
    _require_room(folder, folder)


def require_outputs(outputs: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Find out before any work that answers can be kept and change nothing read.

    Nothing goes into a folder that is an input: it could be read as a part of it.

    Raises:
        StoreError: one cannot be written, is one of the inputs or in one of them, or
            is named twice.
    """
    for number, path in enumerate(outputs):
        place = path.resolve()
        if place in (other.resolve() for other in outputs[:number]):
            raise StoreError(f"{path}: is named twice; give each a file of its own")
        for given in inputs:
            if given.resolve() in (place, place.parent):
                raise StoreError(
                    f"{path}: would change {given}, which this command reads; name a "
                    "file elsewhere"
                )
        require_writable(path)


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file beside its place, flush it to the disk, and rename it.

    Its folder is made if it is missing.

    Raises:
        StoreError: the disk is full or the folder cannot be written. What was
            written before is untouched.
    """
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        write(temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        full = error.errno == errno.ENOSPC
        fix = "free some space" if full else "make the folder writable"
        raise StoreError(
            f"{path}: cannot be written: {error.strerror or error}; {fix} and run the "
            "same command again: all that was written before is kept"
        ) from error


def write_text(text: str, path: Path) -> None:
    """Write a file of text; its folder is made if it is missing.

    Raises:
        StoreError: the file cannot be written.
    """
    write_atomically(path, lambda place: place.write_text(text, encoding="utf-8"))


def write_json(found: Any, path: Path) -> None:
    """Write what JSON can say, likewise.

    Raises:
        StoreError: the file cannot be written.
    """
    write_text(json.dumps(found, indent=1), path)


def _require_room(folder: Path, named: Path) -> None:
    """Try to write into a folder, or where it would be made: nothing is left behind."""
    above = (folder, *folder.parents)
    there = next(place for place in above if os.path.lexists(place))
    probe = there / f".{named.name}.probe"
    try:
        probe.touch()
        # Another process may have tried the same place at the same time.
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(
            f"{named}: cannot be written: {error.strerror}; choose another place"
        ) from error


def _flush_folder(folder: Path) -> None:
    """Make a rename survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
