"""A front on a terminal: what to run, then a line a setting."""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console

from evict_profile.budgets.front import Front, Point
from evict_profile.budgets.recommend import spelt
from evict_profile.budgets.study import Study
from evict_profile.io import say
from evict_profile.report.replay_console import ratio
from evict_profile.stats import Estimate

HEAD = (
    "", "tokens/s", "counts x none", "accept length", "x none", "experts",
    "KL, given", "agreement, given", "excess loss, given",
)  # fmt: skip
WIDTHS = (10, 20, 15, 24, 9, 28, 26, 0)
"""Of all columns but the first."""


def show_study(console: Console, study: Study) -> None:
    """The advice, what compares rules, and the numbers of all workloads together."""
    whole = study.whole
    say(console, f"{study.says} {whole.advice.asking}")
    for sentence in whole.sayings:
        say(console, sentence)
    console.print()
    for line in _lines(whole.front):
        say(console, line)
    for part in study.parts[1:]:
        say(console, f"{part.front.workload}: {part.advice.says}")
    for mark in study.marks:
        say(console, f"note: {mark}")


def _lines(front: Front) -> Iterator[str]:
    """Wider than a terminal's table would let it be, and never cut off."""
    yield f"{front.workload}, {front.prompts} prompts, {front.tokens} given tokens"
    first = 2 + max(len(point.setting.name) for point in front.points)
    for cells in (HEAD, *map(fields, by_rule(front))):
        yield _line(cells, (first, *WIDTHS))
    yield check(front.none)


def by_rule(front: Front) -> Iterable[Point]:
    """Points, rules in the order in which they first stand, small budgets first."""
    rules = dict.fromkeys(point.setting.rule for point in front.points)
    return [point for rule in rules for point in front.of(rule)]


def fields(point: Point) -> tuple[str, ...]:
    """One line of numbers, as `HEAD` names them."""
    given = point.given
    return (
        point.setting.name,
        f"{point.tokens_per_s.value:.1f}",
        ratio(point.earned),
        f"{point.committed.value:.3f}",
        cell(point.accept_ratio, ".3f"),
        f"{point.union.value:.1f}",
        cell(given.kl, ".5f"),
        cell(given.agreement, ".2%"),
        cell(given.excess_loss, "+.4f"),
    )


def check(none: Point) -> str:
    """What the unbudgeted setting, against its own clean forward, says of rounding."""
    return (
        "check: without a budget the same forward differs by rounding and the cache's "
        f"order only: KL {none.given.kl.value:.1e} nats, agreement "
        f"{none.given.agreement.value:.2%}, loss "
        f"{none.given.excess_loss.value:+.1e} nats"
    )


def cell(estimate: Estimate, form: str) -> str:
    """A number with its interval, as short as a table needs it."""
    return spelt(estimate, form, to="..")


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(
        cell.ljust(width) for cell, width in zip(cells, widths, strict=True)
    ).rstrip()
