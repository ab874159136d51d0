"""Tables with staircases made up for a test."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from evict_profile.table import CostTable, Staircase

CONTEXT = 64


def staircase(
    batch: int, costs_us: Sequence[float], context: int = CONTEXT
) -> Staircase:
    """The staircase whose costs from `batch` tokens on are these."""
    steps = (costs_us[0],) * batch + tuple(costs_us)
    return Staircase(batch, context, steps, steps, steps)


def with_staircases(table: CostTable, *staircases: Staircase) -> CostTable:
    """A table with other staircases."""
    return replace(table, staircases=staircases)


@st.composite
def any_staircases(draw: st.DrawFn) -> list[Staircase]:
    """One to three batches; costs may stay flat or fall, batches may leave gaps."""
    batches = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True))
    costs = st.lists(st.integers(10, 40).map(float), min_size=2, max_size=12)
    return [staircase(batch, draw(costs)) for batch in sorted(batches)]
