"""What the scripts here share: one-sentence errors, numbers as options, JSON files.

A user's mistake is one sentence on stderr and exit code 2, as in `evict-profile`.
Whatever can be checked is checked before any work.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from evict_profile.errors import EvictProfileError
from evict_profile.io import check_outputs, write_json
from evict_profile.runner import QUIET_CPU
from runners.protocol import Refusal

USER_ERROR = 2


def command(
    main: Callable[[Sequence[str]], int | None],
) -> Callable[[Sequence[str]], int]:
    """A script's main, given its arguments; returns the exit code, by default 0."""

    @wraps(main)
    def run(arguments: Sequence[str]) -> int:
        try:
            return main(arguments) or 0
        except (EvictProfileError, Refusal) as error:
            print(f"error: {error}", file=sys.stderr)
            return USER_ERROR

    return run


def count(text: str) -> int:
    """An argparse type: how many of something there are to be."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no whole number from 1 on; give one"
        )
    return value


class Answer:
    """The JSON file that a script writes, in one move.

    Until all is done, what is known stands in a file beside it (`.partly`).
    """

    def __init__(self, out: Path, inputs: Sequence[Path]) -> None:
        """To be made before any work."""
        check_outputs([out], inputs)
        self.out, self.partly = out, out.with_name(f"{out.name}.partly")
        check_outputs([self.partly], inputs)

    def keep(self, results: Any) -> None:
        """Write what is known so far."""
        write_json(results, self.partly)

    def write(self, results: Any) -> None:
        """Write everything."""
        write_json(results, self.out)
        self.partly.unlink(missing_ok=True)


def restart_on_one_thread() -> None:
    """Run the same command again in the environment that runners get."""
    if any(os.environ.get(name) != value for name, value in QUIET_CPU.items()):
        environment = os.environ | QUIET_CPU
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606
