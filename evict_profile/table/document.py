"""A cost table as a file: signed by its own hash, named by its key and its version.

Schema `evict-cost-table/3`. `sha256` is the digest of the document without that field,
serialised compactly. So one changed byte is found, and a table can be named by its
hash. Readers take this schema and those before it, and refuse newer ones.

Schema 1 had the prices alone. Schema 2 had what a drafter brings beside them, and words
of this project's own for what schema 3 names as the field does.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evict_profile.errors import TableError
from evict_profile.records import digest

SCHEMA = "evict-cost-table/3"
READABLE = ("evict-cost-table/1", "evict-cost-table/2", SCHEMA)

A_TABLE = "give a .json that 'evict-profile export' or 'calibrate' wrote"


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


def read_signed(path: Path) -> dict[str, Any]:
    """A signed document, less its hash, in the words of the present schema.

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
            f"{', '.join(READABLE)}; upgrade evict-profile to read it"
        )
    stated = document.pop("sha256", None)
    if stated is None or stated != _digest(document):
        raise TableError(
            f"{path}: its content does not match its sha256, so it was changed or cut "
            "short; fetch or export it again"
        )
    return document if schema == SCHEMA else _in_present_words(document)


def as_text(document: Mapping[str, Any]) -> str:
    """The signed file of a document: sorted keys, a line for each list of numbers.

    A diff of two tables then shows which staircase moved.
    """
    signed = {**document, "sha256": digest(document)}
    text = json.dumps(signed, indent=1, sort_keys=True, ensure_ascii=False)
    numbers = re.compile(r"\[\s*(-?[\d.eE+-]+(?:,\s*-?[\d.eE+-]+)*)\s*\]")
    return numbers.sub(lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", text) + "\n"


def unusable_number(content: Any) -> str | None:
    """The first field with a number that is infinite, NaN or no float could hold."""
    named = isinstance(content, dict)
    for key, value in content.items() if named else enumerate(content):
        if isinstance(value, float | int):
            within = None if abs(value) <= sys.float_info.max else ""
        else:
            within = None if _is_flat(value) else unusable_number(value)
        if within is not None:
            inner = f".{within}" if within and within[0] != "[" else within
            return f"{key}{inner}" if named else f"[{key}]{inner}"
    return None


def _is_flat(value: Any) -> bool:
    """Whether nothing in it needs a closer look, as in most of a table's lists."""
    if isinstance(value, list | tuple):
        return all(type(x) is float and x - x == 0.0 for x in value)
    return not isinstance(value, dict)


def files_of(path: Path) -> tuple[Path, ...]:
    """What makes up a table: its JSON, and the samples that it was made from.

    None of a path without a name, such as "." or "": whoever reads it says what it is.
    """
    return (path, path.with_suffix(".parquet")) if path.name else ()


def slug(name: str) -> str:
    """A name as a folder: lower case, marks dropped, runs of others to one dash."""
    plain = re.sub(r"\(r\)|\(tm\)|@", " ", name.lower())
    return re.sub(r"[^a-z0-9.]+", "-", plain).strip("-")


def version_of(text: str) -> tuple[int, ...]:
    """ "1.2.3" as numbers that order as versions do.

    Raises:
        TableError: the text is no version.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", text):
        raise TableError(
            f"{text}.json: is not named by a version such as 1.0.0; rename it, or move "
            "it out of the tree of tables"
        )
    return tuple(int(part) for part in text.split("."))


def _digest(document: Mapping[str, Any]) -> str | None:
    """None of a document that has no digest: half a surrogate pair has no UTF-8."""
    try:
        return digest(document)
    except ValueError:
        return None


OLD_WORDS = {
    (): {"union_growth": "activation"},
    ("acceptance",): {"continuation": "per_rank", "links": "conditional"},
    ("fit",): {"ends": "non_moe"},
    ("fit", "held_out"): {"ours": "hinge"},
    ("gates",): {"says": "message"},
}
"""Fields of schema 2 that schema 3 names otherwise, by where they stand."""


def _in_present_words(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document of schema 1 or 2 as schema 3 has it; what is none of it stays."""
    renamed = {**_renamed(document, ()), "schema": SCHEMA, "interval_percent": 90}
    fit = renamed.get("fit")
    if isinstance(fit, dict):
        for part in ("layers", "non_moe"):
            for term in fit[part] if isinstance(fit.get(part), list) else ():
                if isinstance(term, dict) and term.get("feature") == "crowd":
                    term["feature"] = "expert_rows"
    return renamed


def _renamed(content: Any, where: tuple[str, ...]) -> Any:
    if isinstance(content, list):
        return [_renamed(each, where) for each in content]
    if not isinstance(content, dict) or not any(
        p[: len(where)] == where for p in OLD_WORDS
    ):
        return content
    words = OLD_WORDS.get(where, {})
    return {
        words.get(key, key): _renamed(value, (*where, key))
        for key, value in content.items()
    }
