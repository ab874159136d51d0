"""What the scripts here share as commands: sentences for mistakes, numbers, files.

A user's mistake is one sentence on stderr and exit code 2, as in `evict-profile`; what
can be seen to be wrong is refused before any work.
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
from evict_profile.sweep.client import QUIET_CPU
from runners.protocol import Refusal

USER_ERROR = 2
Main = Callable[[Sequence[str]], int]


def command(main: Callable[[Sequence[str]], int | None]) -> Main:
    """A script's main, given its words; returns the exit code, 0 if main has none."""

    @wraps(main)
    def run(words: Sequence[str]) -> int:
        try:
            return main(words) or 0
        except (EvictProfileError, Refusal) as error:
            print(f"error: {error}", file=sys.stderr)
            return USER_ERROR

    return run


def at_least(least: int) -> Callable[[str], int]:
    """What argparse takes for a whole number from `least` on."""

    def number(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = least - 1
        if found < least:
            raise argparse.ArgumentTypeError(
                f"{text!r} is no whole number from {least} on; give one"
            )
        return found

    return number


count = at_least(1)
"""What argparse takes for how many of something there are to be."""


def amount(text: str) -> float:
    """What argparse takes for a number that is not negative; it may be infinite."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not found >= 0.0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on; give one")
    return found


class Answer:
    """The JSON file that a script writes, in one move.

    While places are still to come, what is known stands in a file beside it, which
    takes its name when all is done.
    """

    def __init__(self, out: Path, inputs: Sequence[Path]) -> None:
        """To be made before any work.

        Raises:
            StoreError: it cannot be written, or would change one of the inputs.
        """
        check_outputs([out], inputs)
        self.out, self.partly = out, out.with_name(f"{out.name}.partly")
        check_outputs([self.partly], inputs)

    def keep(self, found: Any) -> None:
        """Write what is known so far."""
        write_json(found, self.partly)

    def write(self, found: Any) -> None:
        """Write everything.

        Raises:
            StoreError: the disk is full or the folder cannot be written.
        """
        write_json(found, self.out)
        self.partly.unlink(missing_ok=True)


def restart_as_runners_run() -> None:
    """Run the same command on one thread, which sleeps while it waits."""
    if any(os.environ.get(name) != value for name, value in QUIET_CPU.items()):
        environment = os.environ | QUIET_CPU
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)  # noqa: S606
