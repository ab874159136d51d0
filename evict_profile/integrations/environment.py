"""What the environment asks a plug-in to do. Engines have no flags for plug-ins.

vLLM's plug-in reads MODE, TABLE and ALLOW alone.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from evict_profile.errors import ConfigError
from evict_profile.table import SEARCH_PATH

PREFIX = "EVICT_PROFILE_"
OTHERS = (SEARCH_PATH, "EVICT_PROFILE_LIBLLAMA")
Count = Annotated[int, msgspec.Meta(ge=1)]


class Settings(msgspec.Struct, frozen=True, rename="upper"):
    """Settings from EVICT_PROFILE_TABLE and so on (docs/reference/files.md)."""

    mode: Literal["off", "observe", "on"] = "off"
    table: Path | None = None
    traces: Path | None = None
    expert_budget: Count | None = None
    capture_sizes: frozenset[Count] | None = None
    allow: Literal["", "composed"] = ""
    width: Count | None = None
    fewer_steps: Count | None = None
    state: Path | None = None


FIXES = {
    "MODE": "say one of off, observe, on",
    "EXPERT_BUDGET": "give a whole number of at least 1",
    "CAPTURE_SIZES": "give widths of at least 1, as in 2,4,8,16",
    "ALLOW": "say composed, or unset it",
    "WIDTH": "give a whole number of at least 1",
    "FEWER_STEPS": "give a whole number of at least 1",
}
VARIABLES = Settings.__struct_encode_fields__


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """The environment's settings; an empty variable counts as unset."""
    given = {
        name.removeprefix(PREFIX): text
        for name, text in environment.items()
        if name.startswith(PREFIX) and name not in OTHERS
    }
    if given.get("MODE") == "off":
        return Settings()
    if unknown := sorted(given.keys() - set(VARIABLES)):
        # A misspelled variable would otherwise ask for nothing.
        known = ", ".join(PREFIX + name for name in VARIABLES)
        raise ConfigError(f"{PREFIX}{unknown[0]} is unknown; known are {known}")
    settings = _parsed({name: text for name, text in given.items() if text})
    _check_consistent(settings)
    return settings


def _parsed(given: dict[str, str]) -> Settings:
    values: dict[str, object] = {"MODE": "on" if "TABLE" in given else "off", **given}
    if "CAPTURE_SIZES" in given:
        values["CAPTURE_SIZES"] = [
            width.strip() for width in given["CAPTURE_SIZES"].split(",")
        ]
    try:
        return msgspec.convert(
            values, Settings, strict=False, dec_hook=lambda kind, text: kind(text)
        )
    except msgspec.ValidationError as error:
        found = re.search(r"\$\.(\w+)", str(error))
        assert found, error
        name = found[1]
        raise ConfigError(f"{PREFIX}{name}={given[name]}: {FIXES[name]}") from None


def _check_consistent(settings: Settings) -> None:
    observes = settings.mode == "observe"
    needs_table = {
        "MODE=on": settings.mode == "on",
        "EXPERT_BUDGET": settings.expert_budget,
        "CAPTURE_SIZES": settings.capture_sizes,
        "WIDTH": settings.width,
        "FEWER_STEPS": settings.fewer_steps,
    }
    asked = [PREFIX + what for what, value in needs_table.items() if value]
    wrong = {
        "EVICT_PROFILE_MODE=observe needs a folder; set EVICT_PROFILE_TRACES to its "
        "path": observes and settings.traces is None,
        "EVICT_PROFILE_EXPERT_BUDGET changes what is accepted, and "
        "EVICT_PROFILE_MODE=observe records that; unset one of them": observes
        and settings.expert_budget,
        "EVICT_PROFILE_WIDTH cuts trees, and EVICT_PROFILE_MODE=observe records whole "
        "ones; unset one of them": observes and settings.width,
        "EVICT_PROFILE_FEWER_STEPS needs widths that are chosen; unset it, or "
        "EVICT_PROFILE_WIDTH and MODE": settings.fewer_steps
        and (observes or settings.width),
        "EVICT_PROFILE_WIDTH is one width and EVICT_PROFILE_CAPTURE_SIZES several to "
        "choose from; unset one of them": settings.capture_sizes and settings.width,
        f"{''.join(asked[:1])} needs a cost table; set EVICT_PROFILE_TABLE to its "
        "path": asked and settings.table is None,
    }
    for why, is_wrong in wrong.items():
        if is_wrong:
            raise ConfigError(why)
