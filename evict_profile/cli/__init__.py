"""The `evict-profile` command. Each command is a few calls into the layers below.

This file holds the order of `--help` and the handling of errors. A command imports
what it calls when it runs, so that `--help` and mistakes need no torch or pandas.
"""

import errno
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any

import typer
from typer.core import TyperGroup

from evict_profile import __version__
from evict_profile.cli import former, measure, read
from evict_profile.cli.advise import advise
from evict_profile.cli.calibrate import calibrate
from evict_profile.cli.check import check
from evict_profile.cli.estimate import estimate
from evict_profile.cli.export import export
from evict_profile.cli.imports import import_runs
from evict_profile.cli.options import console, reject_empty, stderr
from evict_profile.cli.probe import probe
from evict_profile.cli.replay import replay
from evict_profile.errors import EvictProfileError, Interrupted
from evict_profile.io import say

# The class itself is in a module of typer's own, or of click's with an older typer.
UsageError: Any = typer.BadParameter.__base__
USER_ERROR = 2
INTERRUPTED = 130
UNWRITABLE = {errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EPERM}

COMMANDS: dict[Callable[..., None], str] = {
    measure.sweep: "sweep qwen3-30b-a3b --plan demo",
    measure.fit: "fit runs/qwen3-30b-a3b/demo",
    export: "export TABLE --for sglang --accept 3:2.64",
    probe: "probe http://127.0.0.1:30000 --out runs.jsonl",
    import_runs: "import runs.jsonl --model qwen3-30b-a3b --gpu h200",
    calibrate: "calibrate TABLE traces.parquet",
    estimate: "estimate --model qwen3-30b-a3b --gpu h200 --engine sglang",
    measure.fleet: "fleet fleet.yaml --plan-only",
    advise: "advise TABLE --accept 3:2.64 --batch 8",
    replay: "replay TABLE --synthetic easy --batch 1 --batch 8",
    read.show: "show --model qwen3-30b-a3b --gpu h200",
    read.report: "report cost_tables --out explore.html",
    read.diff: "diff TABLE OTHER",
    check: "check TABLE --recheck",
    read.doctor: "doctor",
}
"""Commands in the order of --help: measure, decide, read; each with an example."""
HELP = {"help_option_names": ["-h", "--help"]}


class ErrorGroup(TyperGroup):
    """Prints a user's mistake as one sentence with exit code 2; Ctrl-C exits 130."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with one_sentence():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with one_sentence(ctx):
            reject_empty(ctx.args)
            return super().invoke(ctx)


@contextmanager
def one_sentence(ctx: Any = None) -> Iterator[None]:
    """End with the sentence of an error; without a context the parser names a wrong
    word.
    """
    try:
        yield
        return
    except Interrupted as interruption:
        sentence, code = str(interruption), INTERRUPTED
    except KeyboardInterrupt:
        sentence, code = "interrupted; no file is left half written", INTERRUPTED
    except EvictProfileError as error:
        sentence, code = f"error: {error}", USER_ERROR
    except UsageError as error:
        if ctx is None:
            raise
        sentence, code = f"error: {_usage(error, error.ctx or ctx)}", USER_ERROR
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        reason = f"{error.filename or 'stdout'}: {error.strerror}"
        sentence = f"error: {reason}; free space or choose another path"
        code = USER_ERROR
    say(stderr, sentence)
    raise typer.Exit(code)


def _usage(error: Any, ctx: Any) -> str:
    option = getattr(error, "option_name", None)
    if answer := former.option_answer(ctx.info_name, option):
        return answer
    return f"{error.format_message().rstrip('.?')}; see: {ctx.command_path} --help"


app = typer.Typer(
    cls=ErrorGroup,
    no_args_is_help=True,
    context_settings=HELP,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Measure what verification costs in MoE speculative decoding: sweep, fit, "
    "export cost tables, and decide with them.",
)
for command, example in COMMANDS.items():
    epilog = f"Example: evict-profile {example}"
    app.command(example.split()[0], epilog=epilog)(command)
app.command("profile", hidden=True)(measure.sweep)
ANY_WORDS = {"allow_extra_args": True, "ignore_unknown_options": True}
for name, answer in former.ANSWERS.items():
    app.command(name, hidden=True, context_settings=ANY_WORDS)(answer)


def _print_version(asked: bool) -> None:
    if asked:
        say(console, __version__)
        raise typer.Exit


@app.callback()
def common(
    version: bool = typer.Option(
        False,
        "--version",
        callback=_print_version,
        is_eager=True,
        help="Print the version and exit.",
    ),
) -> None:
    """Options of every command."""


def main() -> None:
    """Run the command line; what a terminal's encoding lacks is printed as "?"."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    app()
