"""One total over all layers, against every way of spending it."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.budgets.allocation import MIN_KL, allocate, fit_losses

Losses = list[list[float]]


@st.composite
def layers(draw):
    """Losses that fall ever more slowly, of few experts; a total; and the least."""
    experts = draw(st.integers(1, 5))
    count = draw(st.integers(1, 3))
    # Few values, so that many are equal.
    gains = st.lists(
        st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=experts, max_size=experts
    )
    losses = []
    for _ in range(count):
        falls = sorted(draw(gains), reverse=True)
        losses.append([sum(falls[b:]) for b in range(experts + 1)])
    least = draw(st.integers(0, experts))
    total = draw(st.integers(count * least, count * experts))
    return losses, total, least


def lost(losses, budgets):
    """What all layers lose together."""
    return sum(own[budget] for own, budget in zip(losses, budgets, strict=True))


@given(layers())
def test_all_is_spent_and_no_way_of_spending_it_loses_less(case):
    """Of all that there are, with at least the least and at most all of a layer."""
    losses, total, least = case
    budgets = allocate(losses, total, least)
    assert sum(budgets) == total
    ways = product(*(range(least, len(own)) for own in losses))
    best = min(lost(losses, way) for way in ways if sum(way) == total)
    assert lost(losses, budgets) == pytest.approx(best)
    assert all(least <= b < len(own) for b, own in zip(budgets, losses, strict=True))


@given(
    st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=4),
    st.lists(st.floats(0.5, 0.99), min_size=4, max_size=4),
)
def test_an_exponential_is_found_again(starts, shares):
    """Between the budgets that were measured and beyond them."""
    kl = {
        budget: [
            start * share**budget for start, share in zip(starts, shares, strict=False)
        ]
        for budget in (2, 4, 6)
    }
    for own, start, share in zip(fit_losses(kl, 8), starts, shares, strict=False):
        assert own == pytest.approx([start * share**b for b in range(9)], rel=1e-6)


@given(st.lists(st.floats(-1e-9, 1.0), min_size=9, max_size=9))
def test_whatever_was_measured_falls_and_is_convex(values):
    """Noise may rise; what is spent by it must still be spent optimally."""
    kl = dict(zip((2, 4, 8), np.array(values).reshape(3, 3).tolist(), strict=True))
    for own in fit_losses(kl, 16):
        falls = [before - after for before, after in pairwise(own)]
        assert min(falls) >= 0.0
        assert all(b <= a + 1e-12 for a, b in pairwise(falls))


def test_noise_below_nought_is_hardly_any_loss():
    """A divergence may be measured a rounding error below 0."""
    assert max(fit_losses({2: [-1e-12], 4: [0.0]}, 8)[0]) <= 1.01 * MIN_KL
