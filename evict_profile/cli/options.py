"""What commands share: the terminal they print on, and options that several take."""

import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Argument, Context, Option

from evict_profile.errors import ConfigError

console = Console()
stderr = Console(stderr=True)


def whole_table(path: Path | None) -> Path | None:
    """A table that a command reads, checked while the words are parsed: in no time."""
    if path is not None:
        from evict_profile.table.document import read_signed

        read_signed(path)
    return path


Python = Annotated[str | None, Option(help="Interpreter that runs the engine.")]
TableFile = Annotated[
    Path, Argument(callback=whole_table, help="A cost table (.json).")
]
Tables = Annotated[Path, Option(help="Tree of tables to export into.")]
TracedTable = Annotated[
    Path, Option(callback=whole_table, help="Cost table of the model traced.")
]
Page = Annotated[Path, Option("--out", help="The page to write.")]
Json = Annotated[Path | None, Option("--json", help="All numbers as JSON.")]
Part = Annotated[str, Option(help="Only part i of n of the prompts, as i/n.")]
Workloads = Annotated[
    list[str] | None, Option("--workload", help="Repeatable.", show_default="all")
]
Source = Annotated[
    Path | None,
    Option(
        "--from",
        exists=True,
        help="Wheel or unpacked folder; else what pip installed.",
    ),
]


def check_read(ctx: Context, unread: Collection[str], where: str) -> None:
    """Check that none of the options was given that have no effect here."""
    for option in ctx.command.params:
        source = ctx.get_parameter_source(option.name or "")
        if option.name in unread and source and source.name == "COMMANDLINE":
            raise ConfigError(f"{option.opts[0]} is not read {where}; leave it out")


def check_none_empty(words: Sequence[str]) -> None:
    """Check the words of a command: an empty one is a variable that was not set."""
    for before, word in pairwise(["", *words]):
        if not word or re.fullmatch("--[a-z-]+=", word):
            option = word or before
            named = option.rstrip("=") if option.startswith("--") else "an argument"
            raise ConfigError(f"{named} is empty; give it a value, or leave it out")
