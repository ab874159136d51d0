"""Converts mappings into frozen records and back, and compares mappings.

Every file is parsed here, and a mistake becomes one sentence. msgspec converts by the
annotations, strictly: no text is read as a number. It is light enough for a serving
process, which reads cost tables with it.
"""

import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, inspect

from evict_profile.errors import ConfigError, EvictProfileError
from evict_profile.io import regular

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
    import yaml

    is_json = path.suffix == ".json"
    try:
        text = regular(path).read_text(encoding="utf-8")
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

    With `extra_keys`, keys that no field takes are ignored.
    """
    try:
        parsed = msgspec.convert(content, kind, str_keys=True)
    except msgspec.ValidationError as invalid:
        raise error(f"{source}: {_sentence(invalid, kind, content)}") from invalid
    if extra_keys:
        return parsed
    if unknown := _unknown_key(content, parsed):
        field, record = unknown
        names = _keys(record)
        near = get_close_matches(field.rpartition(".")[2], names, 1)
        remedy = f"'{near[0]}'" if near else f"one of {', '.join(names)}"
        raise error(f"{source}: unknown key '{field}'; remove it, or write {remedy}")
    return parsed


def to_mapping(record: Any) -> dict[str, Any]:
    content: dict[str, Any] = msgspec.to_builtins(
        record, str_keys=True, enc_hook=_plain
    )
    return content


def replace(record: T, **changes: Any) -> T:
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


def _unknown_key(content: Any, made: Any, where: str = "") -> tuple[str, Any] | None:
    if isinstance(content, dict):
        is_free, taken = isinstance(made, dict), _keys(made)
        for key, value in content.items():
            field = f"{where}.{key}" if where else str(key)
            if taken and key not in taken:
                return field, made
            inner = made.get(key) if is_free else getattr(made, key, None)
            if unknown := _unknown_key(value, inner, field):
                return unknown
    elif isinstance(content, list | tuple) and {*map(type, content)} - {int, float}:
        for index, (value, inner) in enumerate(zip(content, made, strict=True)):
            if unknown := _unknown_key(value, inner, f"{where}[{index}]"):
                return unknown
    return None


def _keys(record: Any) -> tuple[str, ...]:
    if dataclasses.is_dataclass(record):
        return tuple(field.name for field in dataclasses.fields(record))
    tag = getattr(getattr(record, "__struct_config__", None), "tag_field", None)
    return (*([tag] if tag else []), *getattr(record, "__struct_fields__", ()))


def _sentence(error: msgspec.ValidationError, kind: Any, content: Any) -> str:
    reason, _, path = str(error).partition(" - at `$")
    field = path.rstrip("`").removeprefix(".")
    if missing := re.fullmatch(r"Object missing required field `(.*)`", reason):
        return f"key '{field}{'.' * bool(field)}{missing[1]}' is missing; add it"
    # "fit.layers[0].low" or "runners[...].python"
    parts, value = re.findall(r"\.\.\.|[^.\[\]]+", field), content
    if reason.startswith("Invalid enum value"):
        reason = f"must be one of {', '.join(_words(inspect.type_info(kind), parts))}"
    for part in parts:
        try:
            value = value[int(part) if part.isdigit() else part]
        except (KeyError, IndexError, TypeError):
            value = {}
    given = "" if isinstance(value, dict | list | tuple) else f" (got {value!r})"
    return f"{field}: {reason}{given}" if field else reason


def _words(of: inspect.Type, parts: list[str]) -> list[str]:
    if isinstance(of, inspect.UnionType):
        return [word for kind in of.types for word in _words(kind, parts)]
    if not parts:
        return [repr(value) for value in getattr(of, "values", ())]
    inner = {field.encode_name: field.type for field in getattr(of, "fields", ())}
    item = getattr(of, "item_type", getattr(of, "value_type", None))
    return _words(kind, parts[1:]) if (kind := inner.get(parts[0], item)) else []


def check_rising(name: str, values: Sequence[float]) -> None:
    if not values:
        raise ValueError(f"{name} holds no number")
    if any(after < before for before, after in pairwise(values)):
        raise ValueError(f"{name} falls, and more of it cannot be less")


def check_distinct(name: str, values: Sequence[Any]) -> None:
    if len(set(values)) < len(values):
        raise ValueError(f"{name} holds one of {sorted(values)} twice")
