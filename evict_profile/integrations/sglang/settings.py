"""What the environment asks the plug-in to do. SGLang has no flags for plug-ins."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from evict_profile.errors import ConfigError

Mode = Literal["off", "observe", "on"]

PREFIX = "EVICT_PROFILE_"
TABLE = "EVICT_PROFILE_TABLE"
MODE = "EVICT_PROFILE_MODE"
TRACES = "EVICT_PROFILE_TRACES"
BUDGET = "EVICT_PROFILE_EXPERT_BUDGET"
LADDER = "EVICT_PROFILE_LADDER"


@dataclass(frozen=True)
class Settings:
    """What was asked for.

    Attributes:
        mode: "on" cuts trees; "observe" verifies them whole and records traces; "off"
            does nothing.
        table: the cost table to decide with.
        traces: the folder that traces are written to.
        expert_budget: experts that one layer may wake in one verification (MoE-Spec);
            None for all.
        ladder: widths to build pairs for; None takes the table's own.
    """

    mode: Mode = "off"
    table: Path | None = None
    traces: Path | None = None
    expert_budget: int | None = None
    ladder: tuple[int, ...] | None = None


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the environment.

    Raises:
        ConfigError: a value that cannot be used; the sentence names the variable.
    """
    if environment.get(MODE) == "off":
        return Settings()
    _require_known_names(environment)
    table = _path(environment, TABLE)
    mode = environment.get(MODE) or ("on" if table else "off")
    if mode not in get_args(Mode):
        raise ConfigError(f"{MODE}={mode}: say one of {', '.join(get_args(Mode))}")
    settings = Settings(
        cast(Mode, mode),
        table,
        _path(environment, TRACES),
        _count(environment, BUDGET),
        _widths(environment, LADDER),
    )
    _require_consistent(settings)
    return settings


def _require_known_names(environment: Mapping[str, str]) -> None:
    """Refuse a misspelled variable, which would otherwise ask for nothing."""
    known = (TABLE, MODE, TRACES, BUDGET, LADDER)
    for name in environment:
        if name.startswith(PREFIX) and name not in known:
            raise ConfigError(f"{name} is unknown; known are {', '.join(known)}")


def _require_consistent(settings: Settings) -> None:
    if settings.mode == "on" and settings.table is None:
        raise ConfigError(f"{MODE}=on needs a cost table; set {TABLE} to its path")
    if settings.mode == "observe" and settings.traces is None:
        raise ConfigError(f"{MODE}=observe needs a folder; set {TRACES} to its path")
    if settings.mode == "observe" and settings.expert_budget is not None:
        raise ConfigError(
            f"{BUDGET} changes what is accepted, and {MODE}=observe records that; "
            "unset one of them"
        )
    if settings.table is None and (settings.expert_budget or settings.ladder):
        name = BUDGET if settings.expert_budget else LADDER
        raise ConfigError(f"{name} needs a cost table; set {TABLE} to its path")


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    value = environment.get(name)
    return Path(value) if value else None


def _count(environment: Mapping[str, str], name: str) -> int | None:
    value = environment.get(name)
    if not value:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise ConfigError(f"{name}={value}: give a whole number of at least 1")
    return int(value)


def _widths(environment: Mapping[str, str], name: str) -> tuple[int, ...] | None:
    value = environment.get(name)
    if not value:
        return None
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise ConfigError(f"{name}={value}: give widths of at least 1, as in 2,4,8,16")
    return tuple(sorted({int(part) for part in parts}))
