"""Isotonic regression along several axes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from evict_profile.calibrate.monotone import monotone_fit
from evict_profile.stats import Floats


def _edges(shape: tuple[int, ...], rising: tuple[bool, ...]) -> Floats:
    """One row for each order constraint: row @ fit >= 0."""
    places = np.arange(np.prod(shape)).reshape(shape)
    rows = []
    for axis, up in enumerate(rising):
        last = shape[axis] - 1
        low = np.take(places, range(last), axis).ravel()
        high = np.take(places, range(1, last + 1), axis).ravel()
        for first, second in zip(low, high, strict=True):
            row = np.zeros(places.size)
            row[first], row[second] = (-1.0, 1.0) if up else (1.0, -1.0)
            rows.append(row)
    return np.array(rows)


def _by_quadratic_program(
    values: Floats, weights: Floats, rising: tuple[bool, ...]
) -> Floats:
    """The projection through its dual, which is a non-negative least-squares problem.

    min |fit - values|^2 over edges @ fit >= 0 is values + edges' * force / weights
    with the forces >= 0 that make it smallest in the weighted norm.
    """
    root = np.sqrt(weights.ravel())
    edges = _edges(values.shape, rising)
    force, _ = nnls(edges.T / root[:, None], -root * values.ravel(), maxiter=10_000)
    fit = values.ravel() + edges.T @ force / weights.ravel()
    return fit.reshape(values.shape)


SHAPES = st.sampled_from([(1, 6), (4, 1), (3, 5), (5, 4), (2, 3, 4)])


@given(SHAPES, st.integers(0, 2**32 - 1), st.data())
def test_equals_the_quadratic_program(
    shape: tuple[int, ...], seed: int, data: st.DataObject
) -> None:
    """The nearest monotone table, in a norm of very uneven weights."""
    rng = np.random.default_rng(seed)
    rising = tuple(data.draw(st.booleans()) for _ in shape)
    values, weights = rng.random(shape), 10.0 ** rng.uniform(0, 3, shape)
    fit = monotone_fit(values, weights, rising)
    assert fit == pytest.approx(
        _by_quadratic_program(values, weights, rising), abs=1e-4
    )


@given(SHAPES, st.integers(0, 2**32 - 1))
def test_is_monotone_to_the_last_bit(shape: tuple[int, ...], seed: int) -> None:
    """A reader refuses a table whose rows cross by a rounding error."""
    rng = np.random.default_rng(seed)
    rising = tuple(bool(up) for up in rng.integers(0, 2, len(shape)))
    fit = monotone_fit(rng.random(shape), np.ones(shape), rising)
    for axis, up in enumerate(rising):
        step = np.diff(fit, axis=axis)
        assert np.all(step >= 0.0 if up else step <= 0.0)


@given(st.integers(0, 2**32 - 1))
def test_leaves_a_monotone_table_alone(seed: int) -> None:
    """The projection of what needs none is itself."""
    rng = np.random.default_rng(seed)
    values = np.sort(rng.random((3, 4)), axis=1).cumsum(axis=0)[::-1]
    fit = monotone_fit(values, np.ones((3, 4)), (False, True))
    assert fit == pytest.approx(values)


def test_a_light_cell_goes_to_its_heavy_neighbours() -> None:
    """Cells that hold little do not move those that hold much."""
    values = np.array([[0.1, 0.9, 0.2]])
    fit = monotone_fit(values, np.array([[1e6, 1.0, 1e6]]), (False, True))
    assert fit == pytest.approx(np.array([[0.1, 0.2, 0.2]]), abs=1e-5)
