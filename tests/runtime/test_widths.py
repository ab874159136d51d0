"""`select_widths` is optimal over every ancestor-closed set of every batch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evict_profile.errors import ConfigError
from evict_profile.runtime import select_widths
from evict_profile.runtime.decision import Terms
from tests.runtime.forests import (
    RULES,
    Rule,
    best_total,
    costs,
    forests,
    padded,
)

pytestmark = pytest.mark.usefixtures("loops")

CAPTURE_SIZES = st.none() | st.lists(
    st.integers(1, 24), min_size=1, max_size=5, unique=True
).map(sorted)


@settings(max_examples=50, deadline=None)
@given(forests(), RULES, st.sampled_from([0.0, 0.125, 0.5]), CAPTURE_SIZES, st.data())
def test_equal_to_brute_force(forest, rule, rate, capture_sizes, data):
    cost_us = data.draw(costs(forest))
    cost = np.array(cost_us, dtype=np.float64)
    words = padded(forest), cost, rule.objective, capture_sizes, rule.allocation, rate
    try:
        total, _ = best_total(forest, cost_us, rule, Terms(rate=rate), capture_sizes)
    except ValueError:
        with pytest.raises(ConfigError, match="at the least"):
            select_widths(*words)
        return
    widths = select_widths(*words)
    assert widths.dtype == torch.int64
    assert widths.shape == (len(forest),)
    assert int(widths.sum()) == total


@pytest.mark.parametrize("allocation", ["batch", "uniform"])
def test_a_chain_of_ones_keeps_parents_first(allocation):
    """Where every probability is 1, the first nodes by index are kept."""
    path_prob = torch.ones(2, 1024)
    cost_us = np.full(2 * 1025 + 1, 100.0)
    cost_us[601:] = 1e6
    rule = Rule("ratio", allocation)
    keep, *_ = rule.decide(path_prob, rule.costs(cost_us, 2, 1024), Terms())
    assert keep.sum() == 598
    for row in keep:
        assert not np.any(np.diff(row.astype(int)) > 0)


@pytest.mark.parametrize("allocation", ["batch", "uniform"])
@pytest.mark.parametrize("objective", ["ratio", "rate"])
def test_a_batch_of_256_trees_of_1024_nodes(objective, allocation):
    generator = torch.Generator().manual_seed(3)
    path_prob = torch.rand(256, 1024, generator=generator, dtype=torch.float64) ** 8
    tokens = np.arange(256 * 1025 + 1)
    cost_us = 4000.0 + 3.0 * np.minimum(tokens, 20_000) + 0.5 * tokens
    rule, terms = Rule(objective, allocation), Terms(rate=0.1)
    sizes = rule.costs(cost_us, 256, 1024)
    keep, _, k, expected = rule.decide(path_prob, sizes, terms)
    assert 0 < k < len(sizes) - 1
    np.testing.assert_allclose(expected, path_prob.numpy()[keep].sum())


@pytest.mark.parametrize("bad", [float("nan"), -0.1, 1.1, float("inf")])
def test_what_is_no_probability_is_refused(bad):
    path_prob = torch.tensor([[0.5, bad, 0.1], [0.2, 0.2, 0.0]])
    with pytest.raises(ConfigError, match=r"NaN or outside \[0, 1\]"):
        select_widths(path_prob, np.arange(1.0, 10.0))


def test_half_precision_is_read():
    """bfloat16 scores, as a drafter may hold them."""
    path_prob = torch.tensor([[0.5, 0.25]], dtype=torch.bfloat16)
    assert select_widths(path_prob, np.array([1.0, 1.0, 1.1, 9.0])).tolist() == [2]


@pytest.mark.parametrize(
    ("path_prob", "cost_us", "more", "says"),
    [
        (torch.zeros(4), np.ones(9), {}, r"shape \[4\]"),
        (torch.zeros(0, 4), np.ones(9), {}, "at least one request"),
        (torch.zeros(1, 4, dtype=torch.int64), np.ones(9), {}, "floating point"),
        (torch.zeros(1, 4), np.zeros(9), {}, "not above zero"),
        (torch.zeros(1, 4), np.full(9, np.nan), {}, "not finite"),
        (torch.zeros(1, 4), np.full(9, np.inf), {}, "not finite"),
        (torch.zeros(4, 4), np.ones(4), {}, "reach 3"),
        ([[0.5]], np.ones(9), {}, "is a list; give a tensor"),
        (torch.zeros(1, 4), np.ones((3, 3)), {}, "2 dimensions"),
        (torch.zeros(1, 4), ["much"], {}, "no numbers"),
        (torch.zeros(1, 4), np.ones(9), {"objective": "rate"}, "give rate="),
        (torch.zeros(1, 4), np.ones(9), {"objective": "rate", "rate": -1}, "at least"),
        (torch.zeros(1, 4), np.ones(9), {"objective": "best"}, "ratio, rate"),
        (torch.zeros(1, 4), np.ones(9), {"capture_sizes": [4, 2]}, "increasing"),
        (torch.zeros(1, 4), np.ones(9), {"capture_sizes": [1.5]}, "whole"),
        (torch.zeros(1, 4), np.ones(9), {"capture_sizes": []}, "increasing"),
        (
            torch.zeros(1, 4),
            np.ones(9),
            {"capture_sizes": [20]},
            "on these capture sizes reach 0",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(path_prob, cost_us, more, says):
    with pytest.raises(ConfigError, match=says):
        select_widths(path_prob, cost_us, **more)
