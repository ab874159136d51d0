"""Tables of text, notes and gates on a terminal; `Rows` also go onto pages."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from shutil import get_terminal_size
from textwrap import fill
from typing import TypeVar

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from evict_profile.io import say
from evict_profile.stats import ErrorSummary
from evict_profile.table import Gate

UNLIMITED, WIDEST = 10_000, 100

T = TypeVar("T")


@dataclass(frozen=True)
class Rows:
    head: Sequence[str]
    cells: Sequence[Sequence[object]]
    left: Collection[str] = ()
    """Columns of words, which align to the left as the first does."""

    @property
    def records(self) -> list[dict[str, object]]:
        return [dict(zip(self.head, row, strict=True)) for row in self.cells]

    @classmethod
    def of(
        cls, items: Iterable[T], columns: Mapping[str, Callable[[T], object]]
    ) -> "Rows":
        cells = [[show(item) for show in columns.values()] for item in items]
        return cls(tuple(columns), cells)


def as_text(rows: Rows) -> str:
    """A table at full width: nothing is folded, cut or read as markup."""
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in rows.head:
        left = name in (rows.head[0], *rows.left)
        grid.add_column(Text(name), justify="left" if left else "right", no_wrap=True)
    for row in rows.cells:
        grid.add_row(*(Text(str(cell)) for cell in row))
    page = Console(file=StringIO(), width=UNLIMITED, color_system=None)
    with page.capture() as capture:
        page.print(grid)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def print_rows(console: Console, rows: Rows, title: str = "") -> None:
    say(console, f"{title}\n{as_text(rows)}".strip("\n"))


def wrapped(line: str, indent: str = "") -> str:
    """The line by words, within the terminal and 100 columns."""
    width = min(get_terminal_size((WIDEST, 0)).columns, WIDEST)
    return fill(
        line,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_notes(console: Console, caveats: Iterable[str]) -> None:
    for caveat in caveats:
        say(console, f"note: {caveat}")


def show_gates(console: Console, gates: Iterable[Gate]) -> None:
    for gate in gates:
        mark = "passed" if gate.passed else "FAILED"
        say(console, f"{mark} {gate.name}: {gate.message}")


def error_rows(
    errors: Mapping[str, ErrorSummary], names: Mapping[str, str] | None = None
) -> Rows:
    return Rows.of(
        sorted(errors.items(), key=lambda item: item[1].median),
        {
            "model of the cost": lambda item: (names or {}).get(item[0], item[0]),
            "median": lambda item: f"{item[1].median:.1%}",
            "p90": lambda item: f"{item[1].p90:.1%}",
            "largest": lambda item: f"{item[1].max:.1%}",
        },
    )
