"""Files and folders: where they lie, who may write them, and how they are written.

A file is there whole or not at all, a folder has one writer at a time, and what cannot
be written is refused before the work, in one sentence.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evict_profile.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rich.console import Console

_PACKAGE = Path(__file__).resolve().parent
_WHEEL_DATA = _PACKAGE / "data"


def data_root() -> Path:
    """The folder of `configs/`, `runners/` and `cost_tables/`: in a wheel `data`."""
    return _WHEEL_DATA if _WHEEL_DATA.is_dir() else _PACKAGE.parent


def named_file(kind: str, name: str, others: Sequence[str] = ()) -> Path:
    """The file of a config called by name or by path.

    `kind` is a folder of `configs/`; `others` are known beside the names in it.
    """
    as_path = Path(name).expanduser()
    if as_path.is_file() and (as_path.suffix or os.sep in name):
        return as_path
    folder = data_root() / "configs" / kind
    path = folder / f"{name}.yaml"
    if path.is_file():
        return path
    if as_path.is_dir():
        without = " without config.json" if kind == "models" else ""
        raise ConfigError(f"{name}: is a folder{without}; give a file in it")
    names = sorted(p.stem for p in folder.glob("*.yaml"))
    near = nearest(name, [*names, *others])
    of = " of a YAML, a config.json or its folder" * (kind == "models")
    choices = "these" if near else ", ".join(names)
    raise ConfigError(
        f"no file '{name}' and none of that name in configs/{kind}"
        f"{near}; give a path{of}, or one of {choices}"
    )


def nearest(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name.rpartition("/")[2].lower(), known, cutoff=0.5)
    return f"; nearest: {', '.join(near)}" if near else ""


def regular(path: Path) -> Path:
    """The same path; a pipe or a device raises OSError, since its read may wait."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "it is a pipe or a device, and no file", str(path))
    return path


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be created: {error.strerror}; choose another folder"
        ) from error


@contextmanager
def sole_writer(folder: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Keep other processes out of a folder of measurements.

    Two that measure into one folder would mix their samples and disturb the clock. The
    lock is the system's (flock) and dies with its holder. On a file system without
    locks the file itself is one; where even that fails, nobody is kept out. Another
    writer is waited for, `wait_s` at the most.
    """
    from filelock import FileLock, Timeout

    path = folder / "lock"
    lock = FileLock(path, timeout=wait_s)
    try:
        lock.acquire()
        mine = path.stat()
    except Timeout as error:
        raise DataError(
            f"{folder}: another process is writing into it; wait for it, or choose "
            "another folder"
        ) from error
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written: {error.strerror}; choose another folder"
        ) from error
    try:
        yield
    finally:
        # If the folder was deleted meanwhile, a lock in it is another's.
        with suppress(FileNotFoundError):
            if os.path.samestat(mine, path.stat()):
                path.unlink()
        lock.release()


def check_writable(path: Path) -> None:
    check_folder(path.parent, named=path)
    if path.is_dir():
        raise DataError(f"{path}: is a folder; name a file in it")
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: is a device or a pipe; name a file")


def check_folder(folder: Path, named: Path | None = None) -> None:
    """Refuse a folder, `named` in the message, that files cannot be put into."""
    named = named or folder
    there = next(p for p in (folder, *folder.parents) if os.path.lexists(p))
    probe = there / f".{named.name}.probe"
    try:
        probe.touch()
        # Another process may have tried the same place at the same time.
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"{named}: cannot be written: {error.strerror}; choose another place"
        ) from error


def check_outputs(
    outputs: Sequence[Path | None], inputs: Sequence[Path | None]
) -> None:
    """Refuse outputs that cannot be written, change an input or go into one."""
    named = [path for path in outputs if path]
    for number, path in enumerate(named):
        place = path.resolve()
        if place in (other.resolve() for other in named[:number]):
            raise DataError(f"{path}: is named twice; give each a file of its own")
        for given in filter(None, inputs):
            if given.resolve() in (place, place.parent):
                raise DataError(
                    f"{path}: would change {given}, which this command reads; name a "
                    "file elsewhere"
                )
        check_writable(path)


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file under another name, flush it to the disk, and rename it."""
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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
        raise DataError(
            f"{path}: cannot be written: {error.strerror or error}; {fix} and run the "
            "same command again: all that was written before is kept"
        ) from error


def write_text(text: str, path: Path) -> None:
    write_atomically(path, lambda place: place.write_text(text, encoding="utf-8"))


def as_json(content: Any) -> str:
    return json.dumps(finite(content), indent=1, allow_nan=False)


def write_json(content: Any, path: Path) -> None:
    write_text(as_json(content) + "\n", path)


def finite(value: Any) -> Any:
    """The same with null for NaN and infinities."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def parse_share(option: str, text: str) -> tuple[int, int]:
    """Read one part of a whole, written as i/n: its index from 0, and n."""
    try:
        index, count = (int(part) for part in text.split("/"))
    except ValueError:
        index, count = 0, 0
    if not 1 <= index <= count:
        raise ConfigError(f"{option} {text}: must be i/n with 1 <= i <= n, such as 2/4")
    return index - 1, count


def say(console: Console, line: str) -> None:
    """Print a line as it is: no markup, no colours, no folding."""
    console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
