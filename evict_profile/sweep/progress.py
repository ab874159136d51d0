"""How far long work is: a live line on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from evict_profile.cells import Cell
from evict_profile.config import StopSpec
from evict_profile.sweep.stop import samples_needed

LINE_EVERY_S = 15.0


class Standing(Protocol):
    """How far some work is; its text is what the bar says."""

    @property
    def done(self) -> int:
        """Pieces of work done."""

    @property
    def left(self) -> int:
        """Pieces of work that may still be needed."""


@dataclass(frozen=True)
class State:
    """Where a sweep stands."""

    round: int
    samples: int
    samples_left: int
    open_cells: int
    seconds_left: float

    @property
    def done(self) -> int:
        """Samples taken."""
        return self.samples

    @property
    def left(self) -> int:
        """Samples that may still be needed."""
        return self.samples_left

    def __str__(self) -> str:
        minutes = self.seconds_left / 60.0
        return (
            f"round {self.round}: {self.open_cells} cells open, "
            f"{self.samples} samples, about {minutes:.1f} min left"
        )


class Display(Protocol):
    """Shows how far long work is."""

    def show(self, state: Standing) -> None:
        """Show how far it is."""

    def say(self, line: str) -> None:
        """Print a line that stays."""


class PlainDisplay:
    """One line every fifteen seconds, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown_at = 0.0

    def show(self, state: Standing) -> None:
        """Print the state, if the last line is old enough."""
        if time.monotonic() - self._shown_at >= LINE_EVERY_S:
            self._shown_at = time.monotonic()
            self.say(str(state))

    def say(self, line: str) -> None:
        """Print a line."""
        self._console.print(line, highlight=False, soft_wrap=True)


class LiveDisplay:
    """A bar that is redrawn in place."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=None)

    def show(self, state: Standing) -> None:
        """Redraw the bar."""
        self._progress.update(
            self._task,
            description=str(state),
            completed=state.done,
            total=state.done + state.left,
        )

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(line, highlight=False, soft_wrap=True)


@contextmanager
def display(console: Console) -> Iterator[Display]:
    """The display that suits the console."""
    if not console.is_terminal:
        yield PlainDisplay(console)
        return
    columns = (BarColumn(bar_width=20), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        yield LiveDisplay(progress)


def samples_left(
    cells: Sequence[Cell], history: Mapping[Cell, Sequence[float]], rule: StopSpec
) -> int:
    """Samples that the open cells may still need."""
    return sum(samples_needed(history.get(cell, ()), rule) for cell in cells)
