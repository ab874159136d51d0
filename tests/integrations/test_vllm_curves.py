"""vLLM's curves say what the staircase says, within captured sizes and beyond."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evict_profile.errors import ConfigError
from evict_profile.integrations.by_tokens import token_curve
from evict_profile.integrations.vllm_curves import cost_curves
from evict_profile.table import CostTable, Staircase
from tests.integrations.tables import any_staircases, staircase, with_staircases


def looked_up_ms(curve: list[tuple[int, float]], tokens: int, captured: int) -> float:
    """What vLLM reads up to the last point: costs never fall; up to the largest
    captured size the point at or above, beyond it a line between points beyond it."""
    sizes, costs = np.array(curve).T
    costs = np.maximum.accumulate(costs)
    beyond = sizes > captured
    if tokens > captured and beyond.any():
        return float(np.interp(tokens, sizes[beyond], costs[beyond]))
    return float(costs[sizes >= tokens][0])


@settings(deadline=None)
@given(staircases=any_staircases(), captured=st.integers(0, 22))
def test_every_measured_count_keeps_its_price(
    table: CostTable, staircases: list[Staircase], captured: int
) -> None:
    """Wherever graphs end, the look-up is the largest cost up to that count."""
    export = cost_curves(with_staircases(table, *staircases), None, draft_ms=1.0)
    curve = token_curve(staircases)
    rising_ms = np.maximum.accumulate(curve.step_cost_us) / 1e3
    for tokens, cost_ms in zip(curve.tokens, rising_ms, strict=True):
        found_ms = looked_up_ms(export.fields["verify_curve"], tokens, captured)
        assert found_ms == pytest.approx(cost_ms)


def test_a_flat_tier_keeps_both_ends(table: CostTable) -> None:
    """On a ladder of 4, 8: enough for the look-up, and for a line."""
    ladder = staircase(1, [1000.0] * 4 + [1600.0] * 4)
    fields = cost_curves(with_staircases(table, ladder), None, draft_ms=1.0).fields
    assert fields["verify_curve"] == [(1, 1.0), (4, 1.0), (5, 1.6), (8, 1.6)]


def test_no_draft_time_is_made_up(table: CostTable) -> None:
    """A table of verification alone has none, and zeros would look measured."""
    with pytest.raises(ConfigError, match="give the time of one drafting step"):
        cost_curves(table, None, draft_ms=None)


def test_the_draft_curve_is_what_was_given(table: CostTable) -> None:
    """One point, which vLLM extends to every number of requests."""
    assert cost_curves(table, None, draft_ms=1.5).fields["draft_curve"] == [(1, 1.5)]


@pytest.mark.parametrize(
    ("costs_us", "says"),
    [
        ([1000.0, 2000.0, 2000.0], "goes on from there at 0 ms a token"),
        ([1000.0, 2000.0, 3500.0], "goes on from there at 1.5 ms a token"),
        ([2000.0, 1000.0, 3000.0], "Costs fall somewhere"),
        ([1000.0], "Only 1 tokens were measured"),
    ],
)
def test_the_note_says_what_vllm_makes_of_it(
    table: CostTable, costs_us: list[float], says: str
) -> None:
    """The slope beyond the last point, and costs that vLLM raises."""
    made_up = with_staircases(table, staircase(1, costs_us))
    assert says in " ".join(cost_curves(made_up, None, draft_ms=1.0).notes)
