"""What the environment asks the plug-in to do. SGLang has no flags for plug-ins."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from evict_profile.errors import ConfigError
from evict_profile.table import SEARCH_PATH

PREFIX = "EVICT_PROFILE_"
Mode = Literal["off", "observe", "on"]


@dataclass(frozen=True)
class Settings:
    """The plug-in's settings; `table` is the variable EVICT_PROFILE_TABLE, and so on.

    Attributes:
        mode: "on" cuts trees; "observe" verifies them whole and records traces; "off"
            does nothing.
        table: the cost table to decide with.
        traces: the folder that traces are written to.
        expert_budget: experts that one layer may run in one verification (MoE-Spec);
            None for all.
        ladder: widths to capture graphs for, ascending; None takes the table's own.
        allow: "composed" takes a table that nobody measured.
        width: tokens that every request verifies, ranked by the table's conditional
            acceptance; None decides step by step.
    """

    mode: Mode = "off"
    table: Path | None = None
    traces: Path | None = None
    expert_budget: int | None = None
    ladder: tuple[int, ...] | None = None
    allow: str = ""
    width: int | None = None


def _one_of(*words: str) -> Callable[[str], str]:
    return lambda text: words[words.index(text)]


def _count(text: str) -> int:
    if (count := int(text)) < 1:
        raise ValueError
    return count


def _widths(text: str) -> tuple[int, ...]:
    return tuple(sorted({_count(width) for width in text.split(",")}))


VARIABLES: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "table": (Path, ""),
    "mode": (_one_of(*get_args(Mode)), "say one of off, observe, on"),
    "traces": (Path, ""),
    "expert_budget": (_count, "give a whole number of at least 1"),
    "ladder": (_widths, "give widths of at least 1, as in 2,4,8,16"),
    "allow": (_one_of("composed"), "say composed, or unset it"),
    "width": (_count, "give a whole number of at least 1"),
}
"""The parser of each field's variable, and the fix where it refuses."""


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the environment; an empty variable counts as unset."""
    if environment.get(PREFIX + "MODE") == "off":
        return Settings()
    fields = {PREFIX + field.upper(): field for field in VARIABLES}
    values: dict[str, Any] = {}
    for name, text in environment.items():
        if name == SEARCH_PATH:
            continue
        if name.startswith(PREFIX) and name not in fields:
            # A misspelled variable would otherwise ask for nothing.
            raise ConfigError(f"{name} is unknown; known are {', '.join(fields)}")
        if name in fields and text:
            read, hint = VARIABLES[fields[name]]
            try:
                values[fields[name]] = read(text)
            except ValueError:
                raise ConfigError(f"{name}={text}: {hint}") from None
    settings = Settings(**{"mode": "on" if "table" in values else "off", **values})
    _check_consistent(settings)
    return settings


def _check_consistent(settings: Settings) -> None:
    """Refuse what one variable needs of another, and does not have."""
    observes = settings.mode == "observe"
    needs_table = {
        "MODE=on": settings.mode == "on",
        "EXPERT_BUDGET": settings.expert_budget,
        "LADDER": settings.ladder,
        "WIDTH": settings.width,
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
        "EVICT_PROFILE_WIDTH is one width and EVICT_PROFILE_LADDER several to choose "
        "from; unset one of them": settings.ladder and settings.width,
        f"{''.join(asked[:1])} needs a cost table; set EVICT_PROFILE_TABLE to its "
        "path": asked and settings.table is None,
    }
    for why, holds in wrong.items():
        if holds:
            raise ConfigError(why)
