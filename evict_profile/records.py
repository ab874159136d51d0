"""Mappings into frozen records and back, and what tells two mappings apart.

The one place where files become objects and mistakes become sentences. msgspec converts
by the annotations, strictly: no text is read as a number. It is light enough for a
serving process, which reads cost tables with it.
"""

import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import numpy as np
from msgspec import Meta

from evict_profile.errors import ConfigError, EvictProfileError

T = TypeVar("T")
Facts = dict[str, Any]

LARGEST = sys.float_info.max
Count = Annotated[int, Meta(ge=1, le=2**53)]
Amount = Annotated[int, Meta(ge=0, le=2**53)]
Finite = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
NotNegative = Annotated[float, Meta(ge=0.0, le=LARGEST)]
Positive = Annotated[float, Meta(gt=0.0, le=LARGEST)]
"""Numbers of files, which `parse` refuses beyond their bounds; NaN is in none."""


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON file that holds one mapping."""
    import yaml

    is_json = path.suffix == ".json"
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if is_json else yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}; check the path"
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        kind = "JSON" if is_json else "YAML"
        raise ConfigError(
            f"{path}: is not valid {kind}: {reason}; fix it, or give another file"
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path}: must hold a mapping of names to values; give another file"
        )
    return content


def parse(
    kind: type[T],
    content: Mapping[str, Any],
    source: str,
    error: type[EvictProfileError] = ConfigError,
    extra_keys: bool = False,
) -> T:
    """Turn a mapping into a frozen record, or say which field is wrong and why.

    With `extra_keys`, keys that no field takes are left aside: what a later version
    of a runner or a recorder adds takes nothing from what is known.
    """
    try:
        made = msgspec.convert(content, kind)
    except msgspec.ValidationError as found:
        sentence = _sentence(found, kind, content, extra_keys)
        raise error(f"{source}: {sentence}") from found
    if extra_keys:
        return made
    if unknown := _unknown_key(content, to_mapping(made), kind):
        raise error(
            f"{source}: unknown key '{unknown}'; remove it, or write "
            f"{_known(kind, unknown)}"
        )
    return made


def to_mapping(record: Any) -> dict[str, Any]:
    """The mapping that `parse` makes a record from; the records in it are mappings."""
    content: dict[str, Any] = msgspec.to_builtins(record, enc_hook=_plain)
    return content


def replace(record: T, **changes: Any) -> T:
    """A copy of a frozen record, a struct or a dataclass, with other fields."""
    if isinstance(record, msgspec.Struct):
        return msgspec.structs.replace(record, **changes)
    return dataclasses.replace(record, **changes)  # type: ignore[type-var]


def digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of the compact, key-sorted JSON of a mapping, hex."""
    text = json.dumps(
        content, sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def differences(
    mine: Mapping[str, Any],
    theirs: Mapping[str, Any],
    *,
    sides: tuple[str, str] = ("here", "there"),
) -> list[str]:
    """One phrase for each fact that differs: "layers: 2 here, 4 there"."""
    one, other = sides
    keys = sorted(mine.keys() | theirs.keys())
    return [
        f"{key}: {mine.get(key, 'absent')} {one}, {theirs.get(key, 'absent')} {other}"
        for key in keys
        if mine.get(key) != theirs.get(key)
    ]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


def _unknown_key(content: Any, known: Any, kind: Any, where: str = "") -> str | None:
    """The first key of a mapping, at any depth, that no field of its kind took."""
    if isinstance(content, dict) and isinstance(known, dict):
        for key, value in content.items():
            field = f"{where}.{key}" if where else str(key)
            if key not in known:  # a record may leave its defaults out
                if key not in _names(_kind_at(kind, where)):
                    return field
            elif found := _unknown_key(value, known[key], kind, field):
                return found
    elif isinstance(content, list | tuple) and {*map(type, content)} - {int, float}:
        for index, (value, taken) in enumerate(zip(content, known, strict=True)):
            if found := _unknown_key(value, taken, kind, f"{where}[{index}]"):
                return found
    return None


def _sentence(
    error: msgspec.ValidationError, kind: Any, content: Any, extra_keys: bool
) -> str:
    reason, _, path = str(error).partition(" - at `$")
    field = path.rstrip("`").removeprefix(".")
    if missing := re.fullmatch(r"Object missing required field `(.*)`", reason):
        return _missing(field, missing[1], kind, content, extra_keys)
    value = _value_at(content, field)
    if reason.startswith("Invalid enum value"):
        reason = f"must be one of {', '.join(_choices(kind, field))}"
    given = "" if isinstance(value, dict | list | tuple) else f" (got {value!r})"
    return f"{field}: {reason}{given}" if field else reason


def _missing(owner: str, name: str, kind: Any, content: Any, extra_keys: bool) -> str:
    """A key that a record lacks, and the unknown one that may be meant for it."""
    prefix, given = f"{owner}." if owner else "", _value_at(content, owner)
    sentence = f"key '{prefix}{name}' is missing"
    # Of several records the error does not name the one.
    if extra_keys or "[...]" in owner or not isinstance(given, dict):
        return f"{sentence}; add it"
    known = _names(_kind_at(kind, owner))
    unknown = [str(key) for key in given if key not in known]
    if nearest := get_close_matches(name, unknown, 1, cutoff=0.0):
        return (
            f"{sentence}, and '{prefix}{nearest[0]}' is unknown; fix its spelling, or "
            f"remove it and add '{name}'"
        )
    return f"{sentence}; add it"


def _value_at(content: Any, field: str) -> Any:
    """What a mapping holds at "fit.layers[0].low"; {} where the path does not say."""
    for part in re.findall(r"[^.\[\]]+", field):
        try:
            content = content[int(part) if part.isdigit() else part]
        except (KeyError, IndexError, TypeError):
            return {}
    return content


def _known(kind: Any, field: str) -> str:
    """What may stand in place of a key that nothing takes: the nearest, or any."""
    owner, _, key = field.rpartition(".")
    names = _names(_kind_at(kind, owner))
    near = get_close_matches(key, names, 1)
    return f"'{near[0]}'" if near else f"one of {', '.join(names)}"


def _names(kind: Any) -> list[str]:
    """The keys that a record, or any of several, takes."""
    records = [each for each in (kind, *get_args(kind)) if isinstance(each, type)]
    structs = [each for each in records if issubclass(each, msgspec.Struct)]
    tags = [tag for each in structs if (tag := each.__struct_config__.tag_field)]
    return tags + [name for each in records for name in get_type_hints(each)]


def _kind_at(kind: Any, field: str) -> Any:
    """The annotation of the field at "parts[0].kind"."""
    for part in re.findall(r"[^.\[\]]+", field):
        inner = [each for each in get_args(kind) if each not in (None, ...)]
        if part.isdigit():
            kind = inner[-1]
            continue
        records = [each for each in (kind, *inner) if isinstance(each, type)]
        hints = [get_type_hints(record) for record in records]
        # A name that no record has is a key of free choice, before its record.
        kind = next((each[part] for each in hints if part in each), kind)
    return kind


def _choices(kind: Any, field: str) -> list[str]:
    """The words that the field at "parts[0].kind" may hold."""
    kind = _kind_at(kind, field)
    kinds = [kind, *get_args(kind), *(k for a in get_args(kind) for k in get_args(a))]
    literals = (get_args(each) for each in kinds if get_origin(each) is Literal)
    return [repr(word) for words in literals for word in words]
