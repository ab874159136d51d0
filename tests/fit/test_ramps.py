"""The basis and its non-negative least squares."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.fit.ramps import fit_ramps, split
from evict_profile.pricing import CROWD, RampCost, Term, design

coefficients = st.lists(st.floats(0.0, 100.0), min_size=3, max_size=3)


def features(values: np.ndarray) -> dict[str, np.ndarray]:
    """One feature beside the constant."""
    return {"one": np.ones(len(values)), "tokens": values}


@given(coefficients)
def test_any_non_negative_piecewise_line_is_recovered(slopes: list[float]) -> None:
    """Noise-free data from the basis are predicted exactly."""
    terms = (Term("one"), Term("tokens", 0.0, 8.0), Term("tokens", 8.0))
    x = features(np.arange(1.0, 33.0))
    truth = RampCost(terms, np.array(slopes) + 0.1)
    latency = truth.latency_us(x)
    found = fit_ramps(terms, x, latency, np.ones(32))
    np.testing.assert_allclose(found.latency_us(x), latency, rtol=1e-6)


@given(st.lists(st.floats(1.0, 1e6), min_size=8, max_size=8))
def test_fitted_cost_never_falls_with_more_work(latencies: list[float]) -> None:
    """Whatever the data, prediction is non-decreasing in the feature."""
    x = features(np.arange(1.0, 9.0))
    terms = (Term("one"), Term("tokens", 0.0, 4.0), Term("tokens", 4.0))
    cost = fit_ramps(terms, x, np.array(latencies), np.ones(8))
    assert np.all(np.diff(cost.latency_us(x)) >= -1e-6)
    assert np.all(cost.us_per_unit >= 0.0)


@given(st.floats(0.5, 30.0))
def test_a_split_term_sums_to_the_whole(knot: float) -> None:
    """Two ramps end to end are the ramp they came from."""
    x = features(np.linspace(0.0, 40.0, 17))
    whole = Term("tokens")
    parts = design(split(whole, knot), x).sum(axis=1)
    np.testing.assert_allclose(parts, whole.values(x))


def test_crowd_counts_experts_with_a_second_row() -> None:
    """Shared out evenly, U * ramp(1..2) is the number of experts with two rows."""
    x = {"union": np.array([100.0, 64.0, 8.0]), "rows": np.array([1.28, 2.0, 16.0])}
    second = Term(CROWD, 1.0, 2.0).values(x)
    np.testing.assert_allclose(second, [28.0, 64.0, 8.0])
