"""Rows, their table, and what is said of them."""

from dataclasses import replace

import pytest

from benchmarks.budgets_told import (
    effects,
    fields_of,
    table_of,
    unfaithful,
    verdict,
)
from benchmarks.turns import Interval
from evict_profile.replay.policies import AR
from tests.benchmarks.told_rows import ROW, speed


def test_only_a_budget_excuses_other_tokens() -> None:
    """And rounding, up to a token in a thousand."""
    wrong = replace(ROW, agrees=Interval(0.9, 0.8, 1.0))
    rounded = replace(ROW, agrees=Interval(0.9995, 0.999, 1.0))
    assert len(unfaithful([ROW, rounded, replace(wrong, budget="mass 4"), wrong])) == 1


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        (0.9, 1.2, "Both and truncation alone cannot be told apart"),
        (1.1, 1.2, "Both beats truncation alone"),
        (0.8, 0.9, "Truncation alone beats both"),
    ],
)
def test_who_wins_is_said_where_it_can_be_told(
    low: float, high: float, says: str
) -> None:
    """By the interval of the ratio."""
    ratio = Interval((low + high) / 2, low, high)
    assert verdict("both", "truncation alone", ratio).startswith(says)


def test_what_a_budget_changes_is_told() -> None:
    """Where its interval leaves out 1; who has none is not asked."""
    moved = {"faster": (1.1, 1.2), "slower": (0.7, 0.8), "same": (0.9, 1.1)}
    rows = [
        replace(speed(cut, "mass 8", 1.0), over_unbudgeted=Interval(low, low, high))
        for cut, (low, high) in moved.items()
    ]
    up, down = effects([speed(AR, "none", 1.0), *rows])
    assert up == (
        "Faster than the same without a budget: “faster” within mass 8, 1.10 (1.10 to "
        "1.20)."
    )
    assert down.startswith("Slower") and "“slower”" in down and ";" not in down


def test_a_line_has_a_field_for_each_column() -> None:
    """Times in milliseconds, agreement in percent."""
    found = list(fields_of(replace(ROW, agrees=Interval(0.951, 0.9, 1.0))))
    assert found[0] == "full tree (60 nodes)"
    assert "95.10 (90.00..100.00)" in found and "2.00 0.50 0.10" in found
    head, rule, line = table_of([ROW])
    assert head.count("|") == rule.count("|") == line.count("|") == len(found) + 1
