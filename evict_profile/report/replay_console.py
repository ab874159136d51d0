"""A replay on a terminal: the verdict, then the numbers of each place."""

from collections.abc import Iterator, Sequence

from rich.console import Console

from evict_profile.io import say
from evict_profile.replay.cell import Cell
from evict_profile.replay.policies import AR, BEST_PAIR
from evict_profile.replay.study import Study
from evict_profile.replay.verdict import percent
from evict_profile.stats import Estimate


def show_study(console: Console, study: Study) -> None:
    """What to do, where, and the numbers behind it."""
    say(console, study.says)
    for cell, verdict in zip(study.cells, study.verdicts, strict=True):
        console.print()
        say(console, verdict.says)
        for line in _lines(cell):
            say(console, line)
    if study.workload:
        say(console, f"the table's acceptance was learnt on {study.workload}")
    marks = dict.fromkeys(mark for cell in study.cells for mark in cell.marks)
    for mark in marks:
        say(console, f"note: {mark}")
    best = study.memory.best
    say(
        console,
        f"best half-life of the memory in {study.memory_of}: {best.steps:g} steps, "
        f"{percent(best.over_default)} against the runtime's",
    )


HEAD = ("", "tokens/s", "x plain", "x best fixed", "verified", "depth")
WIDTHS = (50, 10, 20, 20, 10, 7)


def _lines(cell: Cell) -> Iterator[str]:
    """Wider than a terminal's table would let it be, and never cut off."""
    yield _line(HEAD)
    for each in cell.standings:
        setting = f", {each.setting}" if each.setting else ""
        yield _line(
            (
                each.policy + setting,
                f"{each.tokens_per_s.value:.1f}",
                ratio(each.over[AR]),
                ratio(each.over[BEST_PAIR]),
                f"{each.verified.value:.1f}",
                f"{each.depth.value:.1f}",
            )
        )


def _line(fields: Sequence[str]) -> str:
    return "".join(
        field.ljust(width) for field, width in zip(fields, WIDTHS, strict=True)
    ).rstrip()


def ratio(estimate: Estimate) -> str:
    """A ratio with its interval, if it has one."""
    if not estimate.known:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} ({estimate.low:.2f}..{estimate.high:.2f})"
