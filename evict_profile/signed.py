"""JSON documents signed by their own hash, and the phrases for how two differ.

The hash is the SHA-256 of the document without its `sha256` field, serialised
compactly. One changed byte is found, and the hash names the document. The standard
library alone: the runtime reads tables with it in a serving process.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evict_profile.errors import TableError

Facts = dict[str, Any]

SCHEMA = "evict-cost-table/2"
READABLE = ("evict-cost-table/1", SCHEMA)
"""The schema before this one, and this."""

A_TABLE = "give a .json that 'evict-profile export' or 'calibrate' wrote"


def digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of the compact, key-sorted JSON of a mapping, hex."""
    text = json.dumps(
        content, sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """One phrase for each fact that differs: "layers: 2 here, 4 there"."""
    keys = sorted(mine.keys() | theirs.keys())
    return [
        f"{key}: {mine.get(key, 'absent')} here, {theirs.get(key, 'absent')} there"
        for key in keys
        if mine.get(key) != theirs.get(key)
    ]


def read_document(path: Path) -> dict[str, Any]:
    """A JSON file that holds a mapping, unchecked.

    Raises:
        TableError: it cannot be read, is not whole, or holds no mapping.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except IsADirectoryError as error:
        raise TableError(
            f"{path}: is a folder, and no cost table; if it is a run, write its table "
            f"with 'evict-profile export {path}' and give that"
        ) from error
    except OSError as error:
        raise TableError(
            f"{path}: cannot be read: {error.strerror}; check the path, which is taken "
            f"from {Path.cwd()}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise TableError(
            f"{path}: is not a whole JSON document ({error}); fetch or export it again"
        ) from error
    if not isinstance(document, dict):
        raise TableError(f"{path}: is no cost table: it holds no mapping; {A_TABLE}")
    return document


def read_signed(path: Path) -> tuple[dict[str, Any], str]:
    """A signed document of a readable schema, less its hash; and the hash.

    Raises:
        TableError: unreadable, another schema, or a hash that does not match.
    """
    document = read_document(path)
    schema = document.get("schema")
    if schema is None:
        raise TableError(f"{path}: names no schema, so it is no cost table; {A_TABLE}")
    if str(schema).partition("/")[0] != SCHEMA.partition("/")[0]:
        raise TableError(
            f"{path}: has schema '{schema}', so it is no cost table; {A_TABLE}"
        )
    if schema not in READABLE:
        raise TableError(
            f"{path}: has schema '{schema}', and this evict-profile reads "
            f"{' and '.join(READABLE)}; upgrade evict-profile to read it"
        )
    stated = document.pop("sha256", None)
    if stated != digest(document):
        raise TableError(
            f"{path}: its content does not match its sha256, so it was changed or cut "
            "short; fetch or export it again"
        )
    return document, str(stated)
