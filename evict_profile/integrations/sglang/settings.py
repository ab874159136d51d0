"""What the environment asks the plug-in to do. SGLang has no flags for plug-ins."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from evict_profile.errors import ConfigError

PREFIX = "EVICT_PROFILE_"
Mode = Literal["off", "observe", "on"]


@dataclass(frozen=True)
class Settings:
    """What was asked for: `table` is the variable EVICT_PROFILE_TABLE, and so on.

    Attributes:
        mode: "on" cuts trees; "observe" verifies them whole and records traces; "off"
            does nothing.
        table: the cost table to decide with.
        traces: the folder that traces are written to.
        expert_budget: experts that one layer may run in one verification (MoE-Spec);
            None for all.
        ladder: widths to capture graphs for; None takes the table's own.
    """

    mode: Mode = "off"
    table: Path | None = None
    traces: Path | None = None
    expert_budget: int | None = None
    ladder: tuple[int, ...] | None = None


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the environment; an empty variable counts as unset.

    Raises:
        ConfigError: a value that cannot be used; the sentence names the variable.
    """
    if environment.get(PREFIX + "MODE") == "off":
        return Settings()
    known = {PREFIX + field.upper(): field for field in PARSERS}
    values: dict[str, Any] = {}
    for name, text in environment.items():
        if name.startswith(PREFIX) and name not in known:
            # A misspelled variable would otherwise ask for nothing.
            raise ConfigError(f"{name} is unknown; known are {', '.join(known)}")
        if name in known and text:
            try:
                values[known[name]] = PARSERS[known[name]](text)
            except ValueError as error:
                raise ConfigError(f"{name}={text}: {error}") from None
    settings = Settings(**{"mode": "on" if "table" in values else "off", **values})
    _check_consistent(settings)
    return settings


def _check_consistent(settings: Settings) -> None:
    needs_table = {
        "EVICT_PROFILE_MODE=on": settings.mode == "on",
        "EVICT_PROFILE_EXPERT_BUDGET": settings.expert_budget,
        "EVICT_PROFILE_LADDER": settings.ladder,
    }
    if settings.mode == "observe" and settings.traces is None:
        raise ConfigError(
            "EVICT_PROFILE_MODE=observe needs a folder; set EVICT_PROFILE_TRACES to "
            "its path"
        )
    if settings.mode == "observe" and settings.expert_budget is not None:
        raise ConfigError(
            "EVICT_PROFILE_EXPERT_BUDGET changes what is accepted, and "
            "EVICT_PROFILE_MODE=observe records that; unset one of them"
        )
    if settings.table is None:
        for what, asked in needs_table.items():
            if asked:
                raise ConfigError(
                    f"{what} needs a cost table; set EVICT_PROFILE_TABLE to its path"
                )


def _mode(text: str) -> str:
    if text not in get_args(Mode):
        raise ValueError(f"say one of {', '.join(get_args(Mode))}")
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("give a whole number of at least 1")
    return int(text)


def _widths(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise ValueError("give widths of at least 1, as in 2,4,8,16")
    return tuple(sorted({int(part) for part in parts}))


PARSERS: Mapping[str, Callable[[str], Any]] = {
    "table": Path,
    "mode": _mode,
    "traces": Path,
    "expert_budget": _count,
    "ladder": _widths,
}
"""How each field is read from its variable's text."""
