"""`configs/families.yaml`, and the values of a `config.json` by its keys."""

from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from evict_profile.errors import ConfigError
from evict_profile.io import data_root
from evict_profile.records import parse, read_mapping


class Family(Struct, frozen=True):
    """A row of the table: what no key states."""

    width: str = "moe_intermediate_size"
    shared: str = ""
    router: Literal["softmax", "sigmoid"] = "softmax"
    kind: Literal["", "mla"] = ""
    qk_norm: bool = False
    window: Literal["", "everywhere", "alternate", "chunked"] = ""
    linear: Literal["", "gated_delta", "kda", "lightning"] = ""
    gated: bool = True


class Families(Struct, frozen=True):
    """Keys of each quantity, and a row per family."""

    keys: dict[str, tuple[str, ...]]
    families: dict[str, Family]


@cache
def known_families() -> Families:
    path = data_root() / "configs" / "families.yaml"
    return parse(Families, read_mapping(path), str(path))


@dataclass(frozen=True)
class Config:
    """A `config.json`; missing and impossible values raise a ConfigError."""

    content: dict[str, Any]
    path: Path

    def first_key(self, name: str) -> tuple[str, Any]:
        """First key with a value, and the value; null counts as missing."""
        keys = known_families().keys.get(name, (name,))
        found = ((key, self.content.get(key)) for key in keys)
        return next((each for each in found if each[1] is not None), (keys[0], None))

    def get(self, name: str) -> Any:
        return self.first_key(name)[1]

    def count(self, name: str, default: int | None = None, at_least: int = 1) -> int:
        """A whole number, or a list of equal ones, one per layer."""
        key, value = self.first_key(name)
        if isinstance(value, list) and len(value) == self.get("num_hidden_layers"):
            value = value[0] if value.count(value[0]) == len(value) else value
        if value is None and default is not None:
            return default
        if value is None:
            raise self.missing(key)
        if type(value) is not int or value < at_least:
            need = f"give a whole number of at least {at_least}"
            raise self.error(f"{key} is {value!r}; {need}")
        return value

    def listed(self, name: str) -> list[Any]:
        value = self.get(name) or []
        if not isinstance(value, list):
            raise self.error(f"{name} is {value!r}; give a list")
        return value

    def section(self, name: str) -> "Config":
        value = self.content.get(name)
        return Config(value if isinstance(value, dict) else {}, self.path)

    def error(self, reason: str) -> ConfigError:
        return ConfigError(f"{self.path}: {reason}")

    def missing(self, key: str) -> ConfigError:
        fix = "add it as the published config.json has it"
        return self.error(f"key '{key}' is missing; {fix}")

    @cached_property
    def blocks(self) -> list[str]:
        """Names of layers that are attention or an MLP, not both."""
        pattern = self.content.get("hybrid_override_pattern")
        letters = list(pattern) if isinstance(pattern, str) else []
        return list(map(str, self.listed("layers_block_type"))) or letters

    @cached_property
    def layers(self) -> int:
        return self.count("num_hidden_layers", len(self.blocks) or None)

    @cached_property
    def hidden(self) -> int:
        return self.count("hidden_size")
