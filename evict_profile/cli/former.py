"""Commands and options of earlier versions, answered with what to type instead."""

import shlex
from collections.abc import Callable

from typer import Context

from evict_profile.errors import ConfigError


def compose(ctx: Context) -> None:
    words = shlex.join(each for each in ctx.args if each != "--all")
    raise ConfigError(
        f"compose is called estimate; type: evict-profile estimate {words}".rstrip()
    )


def audit() -> None:
    raise ConfigError(
        "audit is a Python call; type: python -c 'from evict_profile.lossless import "
        'Combination, classify; print(classify(Combination("sampled", "rejection", '
        '"stop", "own")))\''
    )


ANSWERS: dict[str, Callable[..., None]] = {"compose": compose, "audit": audit}

ONE_VERSION = (
    "a table serves its own version; measure the other with: evict-profile sweep"
)
OPTIONS = {
    "advise --check": "runs are judged where they are read: evict-profile import "
    "RUNS...",
    "advise --like": "layers without public rows are estimated by their bytes; leave "
    "it out",
    "calibrate --served": "runs of a server are imported; type: evict-profile import "
    "RUNS... --model NAME --gpu NAME",
    "check --json": "the exit code says whether all passed; gates are in TABLE, a JSON "
    "file",
    "check --rechecked": ONE_VERSION,
    "check --reuse-for": ONE_VERSION,
    "check --who": ONE_VERSION,
    "check --why": ONE_VERSION,
    "doctor --json": "a line is a finding; leave it out",
    "estimate --list": "type: evict-profile estimate",
    "export --max-tokens": "the table's tokens are all written; leave it out",
    "probe --json": "type: evict-profile import RUNS... --model NAME --gpu NAME --json",
    "report --explore": "type: evict-profile report FOLDER --out explore.html",
    "show --csv": "type: evict-profile show TABLE --json; every step is in Python's "
    "CostTable.load(TABLE).staircases",
    "show --device": "type --gpu and its name",
    "sweep --shard": "one machine measures a plan in minutes; leave it out, and "
    "measure several models or GPUs with: evict-profile fleet",
}


def option_answer(command: str | None, option: str | None) -> str:
    """What to type in place of an option; empty if there never was one."""
    name = f"{command} {option}"
    return f"{option} is gone; {OPTIONS[name]}" if name in OPTIONS else ""
