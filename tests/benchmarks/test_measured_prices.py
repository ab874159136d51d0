"""Forwards are measured once, and a walk is charged what they took."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measured_prices import Forwards, MeasuredPrices, feasible
from benchmarks.trace_driven import as_runtime
from evict_profile.config import load_model
from evict_profile.errors import TraceError
from evict_profile.replay.ground import Ground
from evict_profile.replay.policies import Fixed
from evict_profile.replay.walk import walk
from evict_profile.table import CostTable
from evict_profile.traces import Trace
from tests.benchmarks.conftest import ENDS_US, EXPERT_US, TOKEN_US, Scripted
from tests.traces.synthetic import Plan, make_trace

QWEN = load_model("qwen3-30b-a3b")


@given(st.integers(1, 600), st.floats(0.0, 200.0))
def test_feasible_unions_can_be_forced(tokens: int, union: float) -> None:
    """At least one token's experts, at most what so many tokens can wake."""
    found = feasible(QWEN, tokens, union)
    assert QWEN.smallest_union() <= found <= QWEN.largest_union(tokens)
    if QWEN.smallest_union() < found < QWEN.largest_union(tokens):
        assert found % 4 == 0
        assert abs(found - union) <= 2.0


def test_a_forward_is_measured_once(scripted: Scripted) -> None:
    """Unions that round to one point are one; the ends do not know the union."""
    forwards = Forwards(scripted.measure, QWEN, QWEN.moe_layers, 128)
    first, again = forwards.of(4, 23.0, 1), forwards.of(4, 24.9, 1)
    forwards.of(4, 12.0, 1)
    assert first is again
    assert scripted.asked == [
        ("ends", 4, 0, 1),
        ("layers", 4, 24, 1),
        ("layers", 4, 12, 1),
    ]


def test_layers_are_scaled_and_ends_are_not(scripted: Scripted) -> None:
    """Half the layers stand for all."""
    forwards = Forwards(scripted.measure, QWEN, QWEN.moe_layers // 2, 128)
    layers_us = EXPERT_US * 24 + TOKEN_US * 4
    assert forwards.of(4, 24.0, 1).us == 2.0 * layers_us + ENDS_US
    assert forwards.spread == 0.0


def test_tokens_are_shared_out_over_the_batch(scripted: Scripted) -> None:
    """Ragged trees run at their mean width, rounded up."""
    Forwards(scripted.measure, QWEN, 48, 128).of(9, 40.0, 4)
    assert scripted.asked[-1] == ("layers", 3, 40, 4)


def test_a_slower_machine_tells_no_other_time(scripted: Scripted) -> None:
    """Where the clock has a reference, both slow down together."""
    forwards = Forwards(scripted.measure, QWEN, 48, 128)
    scripted.reference_us = 10.0
    before = forwards.of(4, 24.0, 1)
    scripted.reference_us, scripted.slow = 20.0, 2.0
    assert forwards.of(8, 24.0, 1).us == before.us + 4.0 * TOKEN_US


def test_a_walk_is_charged_what_ran(
    scripted: Scripted, trace: Trace, informed_table: CostTable
) -> None:
    """Verification by the clock, drafting by its share, and nothing else."""
    made, model = as_runtime(informed_table), informed_table.model
    ground = Ground(trace)
    forwards = Forwards(scripted.measure, model, model.moe_layers, 64)
    prices = MeasuredPrices(made, ground, 1, forwards, 0.1)
    plain = walk(ground, Fixed("", 0, 1), prices, 1, 0)
    plain_us = ENDS_US + EXPERT_US * model.moe.top_k + TOKEN_US
    assert np.all(plain.step_us == plain_us)
    deep = walk(ground, Fixed("", 3, 8), prices, 1, 0)
    assert deep.price[:, 1] == pytest.approx(0.3 * plain_us)
    assert np.all(deep.price[:, 2] == 0.0)
    assert np.all(deep.price[:, 0] >= ENDS_US + 8 * TOKEN_US)


def test_a_trace_without_routes_is_refused(
    scripted: Scripted, informed_table: CostTable
) -> None:
    """There is nothing to carry over."""
    made = as_runtime(informed_table)
    ground = Ground(make_trace(Plan(prompts=5, tokens=16)))
    ground.has_routes = False
    forwards = Forwards(scripted.measure, informed_table.model, 4, 64)
    with pytest.raises(TraceError, match="no routes"):
        MeasuredPrices(made, ground, 1, forwards, 0.1)
