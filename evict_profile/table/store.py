"""One store of tables, whoever writes them: <gpu>/<model>/<engine>/<version>.json."""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from evict_profile.io import finite, make_folder, sole_writer, write_atomically
from evict_profile.records import digest, to_mapping
from evict_profile.table.document import as_text, files_of, slug, version_of
from evict_profile.table.key import Key

FIRST_VERSION = "1.0.0"
WAIT_S = 60.0
"""For another process that writes a table into the same folder."""


class Stored(Struct, frozen=True, dict=True, eq=False):
    """What every table has: a key, a version, and a signed file."""

    key: Key
    version: str

    unsaved: ClassVar[tuple[str, ...]] = ("path",)

    @property
    def document(self) -> dict[str, Any]:
        content: dict[str, Any] = finite(to_mapping(self))
        return {name: content[name] for name in content if name not in self.unsaved}

    @cached_property
    def sha256(self) -> str:
        return digest(self.document)

    @property
    def engine_folder(self) -> str:
        return self.key.engine

    @property
    def relative_path(self) -> Path:
        names = (self.key.gpu, self.key.model, self.engine_folder)
        return Path(*(slug(name) for name in names), f"{self.version}.json")

    def home_in(self, tables: Path) -> Path:
        return (tables / self.relative_path).parent

    def save(self, path: Path) -> None:
        path.write_text(as_text(self.document), encoding="utf-8", newline="\n")


Table = TypeVar("Table", bound=Stored)


def newest_of(tables: Iterable[Table]) -> dict[Key, Table]:
    """The newest version of each key."""
    return {t.key: t for t in sorted(tables, key=lambda t: version_of(t.version))}


def save_next(
    table: Table, home: Path, samples: bytes = b"", after: str = ""
) -> tuple[Table, Path]:
    """Write a table, and samples beside it, as the next version in a folder.

    That is also after the version `after`. No file is overwritten.
    """
    make_folder(home)
    with sole_writer(home, WAIT_S):
        table = replace(table, version=_next_version(home, after))
        path = home / f"{table.version}.json"
        if samples:
            write_atomically(files_of(path)[1], lambda file: file.write_bytes(samples))
        write_atomically(path, table.save)
    return table, path


def _next_version(home: Path, after: str) -> str:
    present = [*(path.stem for path in home.glob("*.json")), *filter(None, [after])]
    if not present:
        return FIRST_VERSION
    major, minor, patch = max(map(version_of, present))
    return f"{major}.{minor}.{patch + 1}"
