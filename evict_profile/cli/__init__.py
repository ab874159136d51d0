"""The `evict-profile` command. Each command is a few calls into the layers below.

Commands stand in the modules of what they work on; here are their order in `--help`,
and what becomes of errors.
"""

import errno
import sys
from typing import Annotated

import typer
from rich.console import Console

from evict_profile import __version__
from evict_profile.cli import budgets, measuring, rules, tables, traces
from evict_profile.cli.shared import console
from evict_profile.errors import EvictProfileError, Interrupted
from evict_profile.io import say

USER_ERROR = 2
INTERRUPTED = 130

COMMANDS = (
    measuring.profile,
    measuring.sweep,
    measuring.merge,
    measuring.fit,
    tables.export,
    traces.trace,
    traces.calibrate,
    traces.replay,
    budgets.trace_budgets,
    budgets.budget,
    tables.report,
    tables.show,
    tables.diff,
    tables.check,
    rules.audit,
    rules.bench,
    measuring.doctor,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Measure what verifying a draft tree costs on a mixture-of-experts model.",
)
for command in COMMANDS:
    app.command()(command)


def _version(asked: bool) -> None:
    if asked:
        say(console, __version__)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print it."),
    ] = False,
) -> None:
    """Options of every command."""


def main() -> None:
    """Run the command; a user's mistake is one sentence and exit code 2."""
    try:
        app()
    except Interrupted as interruption:
        say(Console(stderr=True), str(interruption))
        sys.exit(INTERRUPTED)
    except EvictProfileError as error:
        _fail(str(error))
    except SystemExit as end:
        # Of what commands end with, only Ctrl-C has this code; typer keeps silent.
        if end.code == INTERRUPTED:
            say(Console(stderr=True), "interrupted; no file is left half written")
        raise
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EPERM}:
            raise
        _fail(f"{error.filename}: {error.strerror}; free space or choose another path")


def _fail(sentence: str) -> None:
    say(Console(stderr=True), f"error: {sentence}")
    sys.exit(USER_ERROR)
