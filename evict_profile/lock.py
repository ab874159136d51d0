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
def sole_writer(folder: Path) -> Iterator[TextIO]:
    """Keep others out of a folder; the open file is the lock, and so are its heirs.

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
            yield held
        finally:
            # If the folder was deleted meanwhile, a lock in it is another's.
            if _is_at(path, held):
                path.unlink()


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
    except BlockingIOError:
        return True
    except OSError:
        return False
    return not _is_at(path, held)


def _is_at(path: Path, held: TextIO) -> bool:
    return path.exists() and os.path.samestat(os.fstat(held.fileno()), path.stat())
