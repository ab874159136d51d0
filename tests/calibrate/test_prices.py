"""The trace's own clocks: against the table's prices, and as a table keeps them."""

from dataclasses import replace

import numpy as np
import pytest

from evict_profile.calibrate.drafting import drafting_of
from evict_profile.calibrate.prices import check_prices
from evict_profile.pricing import ForwardCost, RampCost, Shape, Term
from evict_profile.traces import Trace
from tests.traces.synthetic import (
    DRAFT_US,
    EXPERT_US,
    FIXED_US,
    PLAIN_US,
    TOKEN_US,
    Plan,
    make_trace,
)

TOP_K = 2
NO_RAMPS = RampCost((Term("one"),), np.array([0.0]))
TERMS = (Term("one"), Term("union"), Term("tokens"))
START_US = PLAIN_US - EXPERT_US * TOP_K - TOKEN_US
SYNTHETIC = ForwardCost(
    Shape(TOP_K, 0, 1),
    RampCost(TERMS, np.array([START_US, EXPERT_US, TOKEN_US])),
    NO_RAMPS,
    1.0,
)
"""What the synthetic trace's verifications take, to the last microsecond."""


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Eight prompts with clocks and routes."""
    return make_trace(Plan(tokens=8))


def _scaled(by: float) -> ForwardCost:
    layers = RampCost(TERMS, SYNTHETIC.layers.us_per_unit * by)
    return replace(SYNTHETIC, layers=layers)


def test_true_prices_have_no_error(trace: Trace) -> None:
    """Priced at the tokens and the union that each step verified."""
    found = check_prices(trace, SYNTHETIC, 1.0)
    assert found is not None
    assert found.holds
    assert found.steps == len(trace.steps)
    assert found.error.max < 1e-5
    assert found.ratio == pytest.approx(1.0)
    assert "the table prices natural routing" in str(found)


def test_prices_of_another_engine_are_told_apart(trace: Trace) -> None:
    """A quarter too cheap: the ratio and the sentence say so."""
    found = check_prices(trace, _scaled(0.75), 1.0)
    assert found is not None
    assert not found.holds
    assert found.error.median == pytest.approx(0.25)
    assert found.ratio == pytest.approx(1 / 0.75)
    assert "does not price" in str(found)


def test_without_clocks_there_is_nothing_to_check(trace: Trace) -> None:
    """Nor times of drafting."""
    replies = tuple(
        replace(r, steps=tuple(replace(s, clocks=None) for s in r.steps))
        for r in trace.replies
    )
    blind = replace(trace, replies=replies, clocks=())
    assert check_prices(blind, SYNTHETIC, 1.0) is None
    assert drafting_of(blind, "made up", 1.0) is None


def test_drafting_is_the_engines_clock(trace: Trace) -> None:
    """Cumulative over levels, from 0, by batch."""
    times = drafting_of(trace, "made up", 1.0)
    assert times is not None
    assert (times.workload, times.engine) == ("made up", "synthetic 1")
    assert [clock.batch for clock in times.batches] == [1, 4]
    alone = times.batches[0]
    assert alone.draft_us == pytest.approx([DRAFT_US * depth for depth in range(5)])
    assert (alone.fixed_us, alone.plain_fixed_us) == (FIXED_US, 0.25 * FIXED_US)
