"""The one place where files become dataclasses, and mistakes become sentences.

Pydantic validates the plain frozen dataclasses through a `TypeAdapter`; nothing
behind this edge knows of it.
"""

import json
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from evict_profile.errors import ConfigError

T = TypeVar("T")
STRICT_KEYS = ConfigDict(extra="forbid")


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON file that holds one mapping.

    Raises:
        ConfigError: unreadable, not UTF-8 text, not YAML/JSON, or not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
        is_json = path.suffix == ".json"
        content = json.loads(text) if is_json else yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: is not valid {path.suffix}: {reason}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must hold a mapping of names to values")
    return content


def parse(kind: type[T], content: dict[str, Any], source: str) -> T:
    """Turn a mapping into a frozen dataclass, or say which field is wrong and why."""
    try:
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_sentence(error)}") from error


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] in {"unexpected_keyword_argument", "extra_forbidden"}:
        return f"unknown key '{field}'; remove it or mend its spelling"
    if first["type"] in {"missing", "missing_argument"}:
        return f"key '{field}' is missing; add it"
    reason = first["msg"].removeprefix("Value error, ")
    given = "" if isinstance(first["input"], dict) else f" (got {first['input']!r})"
    return f"{field}: {reason}{given}" if field else reason
