"""The cost of a forward, and unions where no batch was measured."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.cost_model import (
    EXPERT_ROWS,
    CostShape,
    ForwardCost,
    HingeCost,
    Term,
    activated_union,
    features_at,
    padded_tokens,
)

WHOLE = np.array([0.0, 4.0, 6.0, 7.0, 8.0, 9.0])
ONE, FOUR = np.array([0.0, 3.0, 5.0]), np.array([0.0, 4.0, 5.0, 6.0, 6.5, 7.0])


def test_without_batches_there_is_one_growth():
    grown = activated_union(np.array([1.0, 2.5, 9.0]), 3, WHOLE, {})
    assert grown.tolist() == [4.0, 6.5, 9.0]


@pytest.mark.parametrize(("batch", "nearest"), [(1, 0), (1.9, 0), (2.1, 1), (64, 1)])
def test_another_batch_takes_the_nearest_in_ratio(batch, nearest):
    """2 lies between 1 and 4."""
    measured = {1: ONE, 4: FOUR}
    tokens = np.array([1.0, 2.0])
    own = (ONE, FOUR)[nearest]
    assert activated_union(tokens, batch, WHOLE, measured).tolist() == own[1:3].tolist()


def test_beyond_its_end_a_batch_rises_as_all_do():
    assert activated_union(np.array([3.0, 5.0]), 1, WHOLE, {1: ONE}).tolist() == [
        6.0,
        8.0,
    ]
    high = np.array([0.0, 4.0, 8.5])
    assert activated_union(np.array([5.0]), 1, WHOLE, {1: high}).tolist() == [9.0]


def test_every_kind_of_term_is_covered():
    """Hinges that end, those that the union multiplies, both parts, all places."""
    shape = CostShape(top_k=2, sliding_window=64, sliding_every=2)
    layers = HingeCost(
        (
            Term("one"),
            Term("union", 2.0, 6.0),
            Term(EXPERT_ROWS, 1.0, 3.0),
            Term("scores"),
        ),
        np.array([9.0, 5.0, 3.0, 0.01]),
    )
    non_moe = HingeCost((Term("tokens"), Term("cache", 10.0)), np.array([2.0, 0.1]))
    cost = ForwardCost(shape, layers, non_moe, layer_scale=3.0)
    tokens, union = np.array([2.0, 8.0, 40.0]), np.array([4.0, 5.5, 9.0])
    places = (np.full(3, 100.0), np.full(3, 2.0))
    features = features_at(shape, tokens, union, *places)
    plain = 3.0 * layers.latency_us(features) + non_moe.latency_us(features)
    np.testing.assert_allclose(
        cost.latency_us(tokens, union, 100.0, 2), plain, rtol=1e-14
    )


def test_costs_broadcast():
    """Widths down, contexts across; a lone place is a number."""
    shape = CostShape(top_k=2, sliding_window=0, sliding_every=1)
    terms = (Term("tokens"), Term("cache"), Term(EXPERT_ROWS, 0.0, 4.0))
    layers = HingeCost(terms, np.array([1.0, 0.5, 0.25]))
    cost = ForwardCost(shape, layers, HingeCost((), np.array([])), 2.0)
    tokens, contexts = np.array([[1.0], [4.0]]), np.array([16.0, 64.0, 256.0])
    table = cost.latency_us(tokens, 2.0 * tokens, contexts, 1)
    assert table.shape == (2, 3)
    assert cost.latency_us(4, 8, 64, 1) == table[1, 1]
    assert cost.latency_us(4, 8, 64, 1).shape == ()


def test_a_forward_that_activates_no_expert_has_no_rows():
    shape = CostShape(top_k=2, sliding_window=0, sliding_every=1)
    layers = HingeCost((Term("rows"), Term(EXPERT_ROWS)), np.array([1.0, 1.0]))
    cost = ForwardCost(shape, layers, HingeCost((), np.array([])), 1.0)
    assert cost.latency_us(4, 0, 64, 1) == 0.0


@given(st.integers(0, 200), st.integers(1, 4))
def test_padding_takes_the_smallest_width_that_holds(asked, batch):
    """Cost is read at the padded size, so that filling a captured width is free."""
    capture_sizes = [1, 2, 4, 8, 16, 32, 64]
    ran = padded_tokens(np.array([asked]), batch, capture_sizes)[0]
    fits = [n * batch for n in capture_sizes if n * batch >= max(asked, batch)]
    assert ran == (fits[0] if fits else capture_sizes[-1] * batch)
