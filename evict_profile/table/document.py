"""A cost table's file, schema `evict-cost-table/4`.

`sha256` is the digest of the compact JSON without that field; it names the table.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evict_profile.config.sweep import gather_engine
from evict_profile.errors import DataError
from evict_profile.io import regular
from evict_profile.records import digest

SCHEMA = "evict-cost-table/4"

UNREAD = {
    "fit": ("marginal",),
    "provenance": ("fixed_us", "fixed_from", "mean_reference_us", "new_graph_us"),
    "provenance.sweep.grid": ("split",),
}
"""Keys of shipped tables that are in their hash and say nothing."""

A_TABLE = "give a .json that 'evict-profile sweep' or 'calibrate' wrote"


class ForeignDocument(DataError): ...


def read_signed(path: Path, schema: str = SCHEMA) -> tuple[dict[str, Any], str]:
    try:
        document = json.loads(regular(path).read_text(encoding="utf-8"))
    except IsADirectoryError as error:
        shown = shlex.quote(str(path))
        of_run = f"writes: evict-profile fit {shown} --tables cost_tables"
        way = (
            of_run
            if (path / "sweep.json").is_file()
            else f"lists: evict-profile show {shown}"
        )
        raise DataError(f"{path}: is a folder; give a table that this {way}") from error
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read: {error.strerror}; check the path, which is taken "
            f"from {Path.cwd()}"
        ) from error
    except (ValueError, RecursionError) as error:
        fix = "fetch or export it again" if path.suffix == ".json" else A_TABLE
        raise DataError(
            f"{path}: is not a whole JSON document ({error}); {fix}"
        ) from error
    if not isinstance(document, dict):
        raise DataError(f"{path}: is no cost table: it holds no mapping; {A_TABLE}")
    stated = document.get("schema")
    if str(stated).partition("/")[0] != schema.partition("/")[0]:
        raise ForeignDocument(
            f"{path}: has schema '{stated}', so it is no cost table; {A_TABLE}"
        )
    if stated != schema:
        raise DataError(
            f"{path}: has schema '{stated}', and this evict-profile reads {schema}; it "
            "was made by another version: fit its run again with evict-profile fit"
        )
    stated = str(document.pop("sha256", None))
    try:
        sound = stated == digest(document)
    except ValueError:  # half a surrogate pair has no UTF-8, and so no digest
        sound = False
    if not sound:
        raise DataError(
            f"{path}: its content does not match its sha256, so it was changed or cut "
            "short; fetch or export it again"
        )
    _without_unread(document)
    return document, stated


def _without_unread(document: dict[str, Any]) -> None:
    for place, names in UNREAD.items():
        part: Any = document
        for name in place.split("."):
            part = part.get(name) if isinstance(part, dict) else None
        for name in names if isinstance(part, dict) else ():
            part.pop(name, None)
    source = document.get("provenance")
    if isinstance(source, dict) and isinstance(sweep := source.get("sweep"), dict):
        gather_engine(sweep)


def as_text(document: Mapping[str, Any]) -> str:
    """The signed file: sorted keys, a line for each list of numbers."""
    return _lines({**document, "sha256": digest(document)}) + "\n"


def _lines(content: Any, begin: str = "\n") -> str:
    inner = f"{begin} "
    if isinstance(content, dict) and content:
        pairs = sorted(content.items())
        items = [f"{_lines(key)}: {_lines(value, inner)}" for key, value in pairs]
        start, end = "{}"
    elif isinstance(content, list | tuple) and {*map(type, content)} - {int, float}:
        items = [_lines(item, inner) for item in content]
        start, end = "[]"
    else:
        return json.dumps(content, ensure_ascii=False)
    return f"{start}{inner}{f',{inner}'.join(items)}{begin}{end}"


def files_of(path: Path) -> tuple[Path, ...]:
    return (path, path.with_suffix(".parquet")) if path.name else ()


def samples_of(path: Path, sha256: str) -> Path:
    samples = files_of(path)[1]
    if not samples.is_file():
        raise DataError(
            f"{samples}: is missing, and holds the table's samples; put the file "
            f"that came with {path.name} back beside it"
        )
    if file_sha256(samples) != sha256:
        raise DataError(
            f"{samples}: is not the file that {path.name} was made from (its "
            "sha256 differs); fetch the two together again"
        )
    return samples


def file_sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def slug(name: str) -> str:
    """A name as a folder: lower case, marks dropped, runs of others to one dash."""
    plain = re.sub(r"\(r\)|\(tm\)|@", " ", name.lower())
    folder = re.sub(r"(?:[^\w.]|_)+", "-", plain).strip("-")
    if not folder.strip("."):  # "..", which would lie outside the tree, or nothing
        raise DataError(
            f"{name!r}: no folder of tables can have this name; give the model or the "
            "device one with a letter or a digit"
        )
    return folder


def version_of(text: str) -> tuple[int, ...]:
    """ "1.2.3" as numbers that order as versions do."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", text):
        raise DataError(
            f"{text}.json: is not named by a version such as 1.0.0; rename it, or move "
            "it out of the tree of tables"
        )
    return tuple(int(part) for part in text.split("."))
