"""Rows of a comparison, made up."""

from dataclasses import replace

from benchmarks.budgets_told import Row
from benchmarks.turns import Interval
from evict_profile.replay.policies import FULL_TREE

ONE = Interval(1.0, 1.0, 1.0)
ROW = Row(
    cut=FULL_TREE,
    setting="60 nodes",
    budget="none",
    tokens_per_s=Interval(100.0, 90.0, 110.0),
    tokens_per_s_wall=ONE,
    over_plain=ONE,
    over_plain_wall=ONE,
    over_unbudgeted=ONE,
    agrees=ONE,
    parts={"verify_us": 2000.0, "draft_us": 500.0, "fixed_us": 100.0},
    decision_us=50.0,
    committed=2.0,
    verified=61.0,
    levels=5.0,
    union=50.0,
)


def speed(cut: str, budget: str, value: float) -> Row:
    """A row that is so fast."""
    over = Interval(value, value, value)
    return replace(ROW, cut=cut, setting="", budget=budget, over_plain=over)
