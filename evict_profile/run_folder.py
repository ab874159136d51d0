"""A folder that is filled part by part, by one process at a time, and resumed.

    FOLDER/HEADER.json   what the parts are parts of
    FOLDER/*.parquet     the parts, or FOLDER/parts/*.parquet
    FOLDER/*.json        notes beside them
    FOLDER/lock          held by the process that fills it

Each file is written beside its place, flushed to the disk, and renamed: it is there
whole or not at all, so that a killed process loses the part it was in.
"""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from evict_profile.errors import DataError
from evict_profile.io import make_folder, sole_writer, write_atomically, write_json
from evict_profile.records import Facts, differences


class RunFolder:
    header_name: str
    parts_name: str = "."
    noun: str
    """What the parts hold, in the plural."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.parts = folder, folder / self.parts_name
        self.header_path = folder / self.header_name

    def exists(self) -> bool:
        return self.header_path.is_file()

    def write_header(self, header: Facts) -> None:
        make_folder(self.parts)
        write_json(header, self.header_path)

    def read_header(self) -> Facts:
        fix = "put a whole copy back, or begin anew in another --out"
        facts: Facts = _read_json(self.header_path, dict, fix)
        return facts

    def locked(self) -> AbstractContextManager[object]:
        make_folder(self.folder)
        return sole_writer(self.folder)

    def part(self, name: str) -> Path:
        return self.parts / f"{name}.parquet"

    def add_part(self, name: str, rows: pa.Table) -> None:
        write_table(rows, self.part(name))

    def read_parts(self) -> list[pa.Table]:
        return list(map(_read_part, sorted(self.parts.glob("*.parquet"))))

    def note(self, name: str, kind: type = dict) -> Any:
        path = self._note(name)
        fix = "delete it and run the same command again, which writes it anew"
        return _read_json(path, kind, fix) if path.exists() else None

    def add_note(self, name: str, content: Any) -> None:
        write_json(content, self._note(name))

    def check_no_orphans(self) -> None:
        if not self.exists() and any(self.parts.glob("*.parquet")):
            raise DataError(
                f"{self.folder}: holds {self.noun} but no {self.header_name}, so what "
                "they are of is unknown; put it back, or choose another --out"
            )

    def check_same(self, mine: Facts, theirs: Facts, more: Sequence[str] = ()) -> None:
        if reasons := [*differences(mine, theirs), *more]:
            raise DataError(
                f"{self.folder}: holds {self.noun} that cannot be continued here "
                f"({'; '.join(reasons)}); choose another --out"
            )

    def _note(self, name: str) -> Path:
        return self.folder / f"{name}.json"


def write_table(rows: pa.Table, path: Path) -> None:
    write_atomically(path, lambda p: pq.write_table(rows, p, compression="zstd"))


def _read_json(path: Path, kind: type, fix: str) -> Any:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, kind):
            return content
        reason = f"it holds no {kind.__name__}"
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error)
    raise DataError(f"{path}: cannot be read ({reason}); {fix}")


def _read_part(path: Path) -> pa.Table:
    try:
        return pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: is damaged ({str(error).splitlines()[0]}); delete this file and "
            "run the same command again, which makes it anew"
        ) from error
