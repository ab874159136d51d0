"""One process at a time where measurements are written piece by piece.

Two that measure into one folder would take each other's numbers for their own, and
disturb the clock that both read. The lock is the system's and dies with its holder,
so that a killed process keeps nobody out.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from evict_profile.errors import StoreError


@contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Keep others out of a folder.

    On a file system that knows no locks nobody is kept out.

    Raises:
        StoreError: another process is in, or the folder cannot be written.
    """
    path = folder / "lock"
    with _opened(path) as held:
        if _is_taken(held, path):
            raise StoreError(
                f"{folder}: another process is writing into it; wait for it, or choose "
                "another --out"
            )
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _opened(path: Path) -> TextIO:
    try:
        return path.open("w")
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be written: {error.strerror}; choose another --out"
        ) from error


def _is_taken(held: TextIO, path: Path) -> bool:
    """Whether another holds the lock, or deleted it since we opened it."""
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return not os.path.samestat(os.fstat(held.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return True
    except OSError:
        return False
