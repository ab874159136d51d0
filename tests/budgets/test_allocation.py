"""One total over all layers, against every way of spending it."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.budgets.allocation import allocate, worth_of_mass

Curves = list[list[float]]


@st.composite
def layers(draw: st.DrawFn) -> tuple[Curves, list[float], int, int]:
    """Curves that never rise, of few experts; worths; a total; and the least."""
    experts = draw(st.integers(1, 5))
    count = draw(st.integers(1, 3))
    # Few values, so that many are equal.
    shares = st.lists(
        st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.4]), min_size=experts, max_size=experts
    )
    curves = [sorted(draw(shares), reverse=True) for _ in range(count)]
    worth = draw(
        st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=count, max_size=count)
    )
    least = draw(st.integers(0, experts))
    total = draw(st.integers(count * least, count * experts))
    return curves, worth, total, least


def saved(curves: Curves, worth: list[float], budgets: tuple[int, ...]) -> float:
    """What the mass within the budgets is worth."""
    return sum(
        each * sum(curve[:budget])
        for curve, each, budget in zip(curves, worth, budgets, strict=True)
    )


@given(layers())
def test_all_is_spent_within_bounds(
    case: tuple[Curves, list[float], int, int],
) -> None:
    """Every layer gets the least, and none more than it has."""
    curves, worth, total, least = case
    budgets = allocate(curves, worth, total, least)
    assert sum(budgets) == total
    assert all(least <= b <= len(c) for b, c in zip(budgets, curves, strict=True))


@given(layers())
def test_no_way_of_spending_it_is_worth_more(
    case: tuple[Curves, list[float], int, int],
) -> None:
    """Of all that there are."""
    curves, worth, total, least = case
    ways = product(*(range(least, len(curve) + 1) for curve in curves))
    best = max(saved(curves, worth, way) for way in ways if sum(way) == total)
    found = saved(curves, worth, allocate(curves, worth, total, least))
    assert found == pytest.approx(best)


@given(
    st.lists(st.floats(0.001, 1.0), min_size=1, max_size=12),
    st.integers(1, 6),
    st.data(),
)
def test_layers_alike_get_alike(curve: list[float], count: int, data: st.DataObject):
    """Up to one expert, where the curve falls everywhere."""
    falling = sorted({round(share, 3) for share in curve}, reverse=True)
    total = data.draw(st.integers(0, count * len(falling)))
    budgets = allocate([falling] * count, [2.0] * count, total, 0)
    assert max(budgets) - min(budgets) <= 1


def test_what_matters_more_gets_more() -> None:
    """The same curve, but what is lost there hurts four times as much."""
    curve = [0.5, 0.25, 0.125, 0.0625]
    assert allocate([curve, curve], [1.0, 4.0], 4, 0) == (1, 3)


@given(
    st.lists(
        st.lists(st.floats(0.01, 1.0), min_size=6, max_size=6), min_size=1, max_size=4
    ),
    st.lists(st.floats(0.0, 10.0), min_size=4, max_size=4),
    st.integers(0, 5),
)
def test_worth_times_what_was_lost_is_the_damage(
    curves: Curves, kl: list[float], budget: int
) -> None:
    """Of each layer, where it alone had the budget."""
    damage = kl[: len(curves)]
    worth = worth_of_mass(damage, curves, budget)
    lost = [sum(curve[budget:]) for curve in curves]
    again = [each * gone for each, gone in zip(worth, lost, strict=True)]
    assert again == pytest.approx(damage)


def test_noise_below_nought_is_no_damage() -> None:
    """A divergence may be measured a rounding error below 0."""
    assert worth_of_mass([-1e-12], [[0.7, 0.3]], 1) == [0.0]


def test_a_layer_that_lost_nothing_has_a_worth() -> None:
    """And no division by 0."""
    assert worth_of_mass([0.0], [[1.0, 0.0]], 1) == [0.0]
