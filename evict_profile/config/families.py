"""`configs/families.yaml`, and the values of a `config.json` by its keys."""

import re
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from evict_profile.errors import ConfigError
from evict_profile.io import data_root
from evict_profile.records import parse, read_mapping

SHAPE_KEY = re.compile("moe|expert|_period|_every|latent")
"""Names of keys that bear on a shape, in a family whose meaning nobody has stated."""
HARMLESS = re.compile("router|bias|norm|scal|loss|dtype|overlap|impl|kernel|output")
"""Of those, flags and names of how experts are trained, scored and run."""


class Family(Struct, frozen=True):
    """`implied` holds values that the family has where a file leaves their keys out."""

    width: str = "moe_intermediate_size"
    shared: str = ""
    router: Literal["softmax", "sigmoid"] = "softmax"
    kind: Literal["", "mla"] = ""
    qk_norm: bool = False
    window: Literal["", "everywhere", "alternate", "chunked"] = ""
    linear: Literal["", "gated_delta", "kda", "lightning", "mamba"] = ""
    gated: bool = True
    implied: dict[str, Any] = {}
    refused: str = ""


class Families(Struct, frozen=True):
    keys: dict[str, tuple[str, ...]]
    families: dict[str, Family]


@cache
def known_families() -> Families:
    path = data_root() / "configs" / "families.yaml"
    return parse(Families, read_mapping(path), str(path))


@dataclass(frozen=True)
class Config:
    """A `config.json`; missing and impossible values raise a ConfigError.

    `unknown` is the model_type that no row of the table has; `read` gathers used keys.
    """

    content: dict[str, Any]
    path: Path
    unknown: str = ""
    read: set[str] = field(default_factory=set)

    def first_key(self, name: str) -> tuple[str, Any]:
        """First key with a value, and the value; null counts as missing."""
        keys = known_families().keys.get(name, (name,))
        self.read.update(keys)
        items = ((key, self.content.get(key)) for key in keys)
        return next((item for item in items if item[1] is not None), (keys[0], None))

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
        value = self.get(name)
        return Config(value if isinstance(value, dict) else {}, self.path, self.unknown)

    def error(self, reason: str) -> ConfigError:
        return ConfigError(f"{self.path}: {reason}")

    def missing(self, key: str) -> ConfigError:
        if self.unknown:
            return self.unfamiliar(f"key '{key}' is missing")
        fix = "add it as the published config.json has it"
        return self.error(f"key '{key}' is missing; {fix}")

    def unfamiliar(self, reason: str) -> ConfigError:
        return self.error(
            f"model_type '{self.unknown}' is unknown, and {reason}; add its row to "
            "configs/families.yaml, or give its shape as a YAML file of configs/models"
        )

    def unread(self) -> list[str]:
        ours = self.read.union(*known_families().keys.values())
        return [
            key
            for key, value in self.content.items()
            if SHAPE_KEY.search(key) and key not in ours
            if value and not isinstance(value, float)
            if not (isinstance(value, bool | str) and HARMLESS.search(key))
        ]

    @cached_property
    def blocks(self) -> list[str]:
        """Names of layers that are attention or an MLP, not both."""
        pattern = self.get("hybrid_override_pattern")
        letters = list(pattern) if isinstance(pattern, str) else []
        return list(map(str, self.listed("layers_block_type"))) or letters

    @cached_property
    def layers(self) -> int:
        return self.count("num_hidden_layers", len(self.blocks) or None)

    @cached_property
    def hidden(self) -> int:
        return self.count("hidden_size")
