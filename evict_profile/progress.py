"""How far long work is: a bar on a terminal, a line now and then in a log."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from evict_profile.io import say

LINE_EVERY_S = 15.0


class ProgressBar:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=None)
        self._line_at = float("-inf")

    def show(self, text: str, done: int = 0, left: int = 0) -> None:
        """Redraw the bar; without one print a line, if the last one is old enough."""
        total = done + left
        self._progress.update(self._task, description=text, completed=done, total=total)
        if self._progress.disable and time.monotonic() - self._line_at >= LINE_EVERY_S:
            self._line_at = time.monotonic()
            self.say(text)

    def say(self, line: str) -> None:
        say(self._progress.console, line)


@contextmanager
def progress_bar(console: Console) -> Iterator[ProgressBar]:
    columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
    disable = not console.is_terminal
    with Progress(
        *columns, TimeElapsedColumn(), console=console, disable=disable
    ) as progress:
        yield ProgressBar(progress)
