"""What is told of budgets and truncation: a row a contender, a table, sentences.

A whole tree without a budget is what nobody saves on; truncation alone verifies less of
it, a budget alone all of it within the budget, and both do both.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.turns import Interval
from evict_profile.budgets.settings import NONE
from evict_profile.replay.policies import AR, FULL_TREE, SERVED_TREE

EXACT = 0.999
"""Agreement of decoding without a budget, below which it is not rounding."""
TRUNCATION_ALONE, BUDGET_ALONE, BOTH = "truncation alone", "a budget alone", "both"
DUELS = (
    (BOTH, TRUNCATION_ALONE),
    (BOTH, BUDGET_ALONE),
    (TRUNCATION_ALONE, BUDGET_ALONE),
)


@dataclass(frozen=True)
class Row:
    """One way to truncate under one budget, as measured.

    Attributes:
        cut, setting: how it truncates, and what that was set to in hindsight.
        budget: "mass 16"; "none".
        tokens_per_s, tokens_per_s_wall: of the batch; by `Moment.us`, by wall time.
        over_plain, over_plain_wall: over plain decoding.
        over_unbudgeted: over the same way to truncate without a budget, each as it was
            set for its own prices; by `Moment.us`.
        agrees: share of what it decoded that the target without a budget would say.
        parts: microseconds of a step by part; routing within the budget is in the
            verification.
        decision_us: CPU time of the policy in a step, which is in the other parts.
        committed, verified, levels, union: of a step of the batch; the union is
            distinct experts, mean over layers.
    """

    cut: str
    setting: str
    budget: str
    tokens_per_s: Interval
    tokens_per_s_wall: Interval
    over_plain: Interval
    over_plain_wall: Interval
    over_unbudgeted: Interval
    agrees: Interval
    parts: dict[str, float]
    decision_us: float
    committed: float
    verified: float
    levels: float
    union: float

    @property
    def how(self) -> str:
        """It truncates: "full tree (60 nodes)"."""
        return f"{self.cut} ({self.setting})" if self.setting else self.cut

    @property
    def name(self) -> str:
        """In a sentence: “full tree (60 nodes)” within mass 16."""
        within = "" if self.budget == NONE else f" within {self.budget}"
        return f"“{self.how}”{within}"


def standing(name: str, row: Row) -> str:
    """How the fastest of some contenders did."""
    return (
        f"The fastest of {name} is {row.name} at {told(row.over_plain)} of plain "
        f"decoding; {row.agrees.value:.1%} of its tokens are the target's "
        f"({row.agrees.low:.1%} to {row.agrees.high:.1%})."
    )


def groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """What truncates, what has a budget, and what does both; if there are any."""
    found: dict[str, list[Row]] = {TRUNCATION_ALONE: [], BUDGET_ALONE: [], BOTH: []}
    for row in rows:
        whole, free = row.cut in (FULL_TREE, SERVED_TREE), row.budget == NONE
        if row.cut != AR and not (whole and free):
            kind = BUDGET_ALONE if whole else TRUNCATION_ALONE if free else BOTH
            found[kind].append(row)
    return {name: group for name, group in found.items() if group}


def effects(rows: Sequence[Row]) -> Iterator[str]:
    """Which contenders a budget speeds up, and which it slows down."""
    budgeted = [row for row in rows if row.budget != NONE]
    for does, moved in (
        ("Faster", [r for r in budgeted if r.over_unbudgeted.low > 1.0]),
        ("Slower", [r for r in budgeted if r.over_unbudgeted.high < 1.0]),
    ):
        names = (f"{row.name}, {told(row.over_unbudgeted)}" for row in moved)
        if moved:
            yield f"{does} than the same without a budget: {'; '.join(names)}."


def fastest(rows: Sequence[Row]) -> Row:
    """In hindsight, by the step clock."""
    return max(rows, key=lambda row: row.over_plain.value)


def verdict(one: str, other: str, ratio: Interval) -> str:
    """Which of two ways wins, if that can be told."""
    if ratio.low <= 1.0 <= ratio.high:
        return f"{one} and {other} cannot be told apart: {told(ratio)}.".capitalize()
    winner, loser = (one, other) if ratio.low > 1.0 else (other, one)
    return f"{winner} beats {loser}: {one} over {other} is {told(ratio)}.".capitalize()


def told(found: Interval) -> str:
    """A number and its interval, for a sentence."""
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def unfaithful(rows: Sequence[Row]) -> list[str]:
    """What decoded other tokens than the target's, without a budget to excuse it."""
    return [
        f"CHECK FAILED: {row.name} is lossless, and {1.0 - row.agrees.value:.2%} of "
        "its tokens are not the target's; do not believe these numbers"
        for row in rows
        if row.budget == NONE and row.agrees.value < EXACT
    ]


def table_of(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown: a line a contender."""
    head = (
        "",
        "budget",
        "over plain",
        "by wall time",
        "over no budget",
        "the target's tokens, %",
        "tokens/s",
        "committed",
        "verified",
        "levels",
        "union",
        "verify, draft, rest ms",
        "deciding, ms",
    )
    yield f"| {' | '.join(head)} |"
    yield "|---|---" + "|--:" * (len(head) - 2) + "|"
    for row in rows:
        yield f"| {' | '.join(fields_of(row))} |"


def fields_of(row: Row) -> Iterator[str]:
    """One line's fields."""
    yield row.how
    yield row.budget
    for found in (row.over_plain, row.over_plain_wall, row.over_unbudgeted):
        yield spread(found)
    yield spread(row.agrees, scale=100.0)
    yield f"{row.tokens_per_s.value:.0f}"
    for number in (row.committed, row.verified, row.levels, row.union):
        yield f"{number:.2f}"
    yield " ".join(f"{us / 1e3:.2f}" for us in row.parts.values())
    yield f"{row.decision_us / 1e3:.2f}"


def spread(found: Interval, scale: float = 1.0) -> str:
    """A number and its interval, for a table."""
    value, low, high = (scale * x for x in (found.value, found.low, found.high))
    return f"{value:.2f}" if low == high else f"{value:.2f} ({low:.2f}..{high:.2f})"
