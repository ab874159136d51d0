"""From samples to a cost as a sum of hinges: points, fit, knots and intervals."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import gamma

from evict_profile.cells import Cell, frame_of, measured, places_of
from evict_profile.cost_model import EXPERT_ROWS, CostShape, HingeCost, Term, design
from evict_profile.fit.hinge import (
    Observations,
    Uncertainty,
    choose_terms,
    fit_hinges,
    fit_points,
    layer_terms,
    refinements,
)
from evict_profile.fit.intervals import interval
from evict_profile.fit.points import features_of, split_points, undisturbed
from evict_profile.sweep.grid import make_grid
from tests.factories import EXPERT_US, LAYERS, MODEL, SWEEP, known_us, part_us, timed

CELL = Cell("layers", 4, 8, 64, 2, "balanced")
NEW = [Cell("layers", w, u, 128, 1, "balanced") for w, u in ((3, 6), (6, 20), (12, 30))]

TOKENS = np.tile(np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]), 6)
X = {"one": np.ones(len(TOKENS)), "tokens": TOKENS}
LINES = (Term("one"), Term("tokens"))
ERROR = np.full(len(TOKENS), 0.005)
NOISE = 1.0 + 0.005 * np.random.default_rng(0).standard_normal(len(TOKENS))

coefficients = st.lists(st.floats(0.0, 100.0), min_size=3, max_size=3)


def points_of(latencies):
    cells = measured(timed(latencies)).assign(observed_union=0.0)
    points, off_level = split_points(cells, make_grid(SWEEP, MODEL), ())
    return pd.concat([points, off_level]).sort_values("width")


def by_tokens(values):
    return {"one": np.ones(len(values)), "tokens": values}


@given(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=30))
def test_a_point_is_the_median_of_its_cell(values):
    """One point a cell, at the median, with an error above its floor."""
    points = points_of({CELL: values})
    assert points["latency_us"].iloc[0] == pytest.approx(np.median(values))
    assert points["error"].iloc[0] >= 0.003


def test_cells_of_a_part_share_their_relative_spread():
    """A lucky cell weighs no more than the others; one with more samples does."""
    rng = np.random.default_rng(3)
    cells = [Cell("layers", n, 8, 64, 1, "balanced") for n in range(1, 21)]
    noisy = {c: (1.0 + 0.05 * rng.standard_normal(8)).tolist() for c in cells}
    lucky, often = cells[0], cells[1]
    noisy[lucky], noisy[often] = [1.0] * 8, noisy[often] * 4
    error = points_of(noisy)["error"].to_numpy()
    assert error[0] == error[2] > 1.5 * error[1]
    assert error[0] == pytest.approx(1.2 * 0.05 / np.sqrt(8), rel=0.25)


def test_a_disturbed_cell_weighs_less():
    """Its samples lie many times as far apart as those of the others."""
    rng = np.random.default_rng(3)
    cells = [Cell("layers", n, 8, 64, 1, "balanced") for n in range(1, 31)]
    noisy = {c: (1.0 + 0.01 * rng.standard_normal(7)).tolist() for c in cells}
    noisy[cells[0]][:4] = [2.0] * 4
    error = points_of(noisy)["error"].to_numpy()
    assert error[0] > 20.0 * error[1:].max()
    assert list(undisturbed(points_of(noisy)).index) == cells[1:]


def test_medians_of_few_skewed_samples_are_brought_to_the_median():
    """Six samples over a hard floor have medians above the law's own."""
    rng = np.random.default_rng(3)
    cells = [Cell("layers", n, 8, 64, 1, "balanced") for n in range(1, 401)]
    drawn = 1.0 + 0.1 * rng.gamma(0.5, size=(len(cells), 6))
    law = 1.0 + 0.1 * gamma(0.5).median()
    points = measured(timed(dict(zip(cells, drawn.tolist(), strict=True))))
    raw = np.median(drawn, axis=1).mean() / law - 1.0
    assert raw > 0.007
    assert abs(points["latency_us"].mean() / law - 1.0) < raw / 2.0


def test_a_cost_is_known_as_well_as_residuals_say():
    """Of a mean alone: its standard error, over the terms that cost something."""
    noise = 1.0 + 0.01 * np.random.default_rng(0).standard_normal(64)
    cells = [Cell("layers", w, 8, 64, 1, "balanced") for w in range(1, 65)]
    points = frame_of(cells).assign(latency_us=100.0 * noise, error=0.005)
    shape = CostShape(2, 0, 1)
    cost = fit_points((Term("one"),), shape, points, bends=False)
    known = Uncertainty(cost, shape, points).us(np.ones((1, 1)))
    assert known == pytest.approx(100.0 * noise.std(ddof=1) / 8.0, rel=0.01)
    free = HingeCost(LINES, np.append(cost.us_per_unit, 0.0))
    assert Uncertainty(free, shape, points).us(np.array([[1.0, 500.0]])) == known


def test_a_term_without_cost_takes_no_part_in_the_error():
    """Latencies that fall with tokens leave a mean of eight, with seven degrees."""
    cells = [Cell("layers", w, 8, 64, 1, "balanced") for w in range(1, 9)]
    us = 100.0 - np.arange(8.0)
    points = frame_of(cells).assign(latency_us=us, error=0.005)
    cost = HingeCost(LINES, np.array([us.mean(), 0.0]))
    known = Uncertainty(cost, CostShape(2, 0, 1), points).us(np.array([[1.0, 50.0]]))
    assert known == pytest.approx(us.std(ddof=1) / np.sqrt(8.0))


def test_features_count_rows_of_an_expert():
    """8 tokens x top-4 over 8 experts are 4 rows each; each request reads its cache."""
    features = features_of(MODEL.cost_shape, frame_of([CELL]))
    assert features["rows"][0] == 4.0
    assert features["cache"][0] == 128.0
    assert features["scores"][0] == 8 * 64


def test_expert_rows_count_experts_with_a_second_row():
    """Shared out evenly, U * hinge(1..2) is the number of experts with two rows."""
    x = {"union": np.array([100.0, 64.0, 8.0]), "rows": np.array([1.28, 2.0, 16.0])}
    second = Term(EXPERT_ROWS, 1.0, 2.0).values(x)
    np.testing.assert_allclose(second, [28.0, 64.0, 8.0])


@given(coefficients)
def test_any_non_negative_piecewise_line_is_recovered(slopes):
    terms = (Term("one"), Term("tokens", 0.0, 8.0), Term("tokens", 8.0))
    x = by_tokens(np.arange(1.0, 33.0))
    truth = HingeCost(terms, np.array(slopes) + 0.1)
    latency = truth.latency_us(x)
    found = fit_hinges(terms, Observations(x, latency, np.ones(32)))
    np.testing.assert_allclose(found.latency_us(x), latency, rtol=1e-6)


@given(st.lists(st.floats(1.0, 1e6), min_size=8, max_size=8))
def test_fitted_cost_never_falls_with_more_work(latencies):
    x = by_tokens(np.arange(1.0, 9.0))
    terms = (Term("one"), Term("tokens", 0.0, 4.0), Term("tokens", 4.0))
    cost = fit_hinges(terms, Observations(x, np.array(latencies), np.ones(8)))
    assert np.all(np.diff(cost.latency_us(x)) >= -1e-6)
    assert np.all(cost.us_per_unit >= 0.0)


@given(st.sets(st.integers(1, 64), min_size=2, max_size=9))
def test_a_refined_term_sums_to_the_whole(levels):
    """Hinges end to end are the hinge they came from, bent or made to jump."""
    x = by_tokens(np.array(sorted(levels), dtype=np.float64))
    inner = max(len(levels) - 2, 0)
    options = list(refinements(LINES, x))
    assert len(options) == inner + max(inner - 1, 0)
    for option in options:
        parts = design(option[1:], x).sum(axis=1)
        np.testing.assert_allclose(parts, LINES[1].values(x))


def test_a_bend_gets_a_knot():
    """Cost that is flat up to 8 tokens and rises after is split at 8."""
    latency = (100.0 + 10.0 * np.maximum(TOKENS - 8.0, 0.0)) * NOISE
    terms = choose_terms(LINES, Observations(X, latency, ERROR))
    assert Term("tokens", 0.0, 8.0) in terms


def test_a_jump_gets_two_knots():
    """Of which neither alone would pay: level to 8 tokens, and level from 16 on."""
    latency = (100.0 + 50.0 * (TOKENS > 8.0)) * NOISE
    terms = choose_terms(LINES, Observations(X, latency, ERROR))
    assert Term("tokens", 8.0, 16.0) in terms


def test_a_jump_at_the_fourth_row_of_an_expert_is_found():
    """As a CPU's float32 product has it; no power of two lies on either side."""
    rows = np.tile(np.array([1.0, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0]), 6)
    x = {"one": np.ones(len(rows)), "rows": rows, "union": np.full(len(rows), 16.0)}
    base = (Term("one"), Term(EXPERT_ROWS, 1.0, 8.0))
    latency = (100.0 + 16.0 * 5.0 * (rows > 3.0)) * NOISE
    terms = choose_terms(base, Observations(x, latency, ERROR))
    assert Term(EXPERT_ROWS, 3.0, 4.0) in terms


def test_a_line_gets_none():
    latency = (100.0 + 10.0 * TOKENS) * NOISE
    assert choose_terms(LINES, Observations(X, latency, ERROR)) == LINES


def test_unseen_cells_are_covered_as_they_cost(fitted):
    """Within 2 % of the known cost, between the measured points."""
    known = [known_us(cell, cell.union) for cell in NEW]
    np.testing.assert_allclose(part_us(fitted.cost, NEW), known, rtol=0.02)


def test_the_whole_model_is_layers_scaled_plus_the_rest(fitted):
    """verify = layers * 4 / 2 + the rest for the four-layer tiny model."""
    cost = fitted.cost
    rest = [replace(cell, part="non_moe") for cell in NEW]
    whole = part_us(cost, NEW) * 4 / LAYERS + part_us(cost, rest)
    tokens, union, *_ = places_of(frame_of(NEW))
    forward_us = cost.latency_us(tokens, union, 128, 1)
    np.testing.assert_allclose(forward_us, whole)


def test_the_slope_is_the_cost_of_an_expert(fitted):
    """Per layer and expert, what the samples were made with."""
    small, large = (Cell("layers", 8, u, 64, 1, "balanced") for u in (4, 32))
    slope_us, error_us = fitted.us_per_expert(small, large)
    assert 0.0 < error_us < 0.05 * EXPERT_US
    assert slope_us == pytest.approx(EXPERT_US, rel=0.03)


def test_intervals_hold_the_known_cost(fitted):
    """The interval is around the truth and narrower than 5 %."""
    features = features_of(fitted.cost.shape, frame_of(NEW))
    noise_us = fitted.layers_noise_us(design(fitted.cost.layers.terms, features))
    low, high = interval(part_us(fitted.cost, NEW), noise_us)
    known = np.array([known_us(cell, cell.union) for cell in NEW])
    assert np.all(low <= known * 1.005)
    assert np.all(known * 0.995 <= high)
    assert np.all((high - low) / known < 0.05)


@pytest.mark.parametrize("window", [0, 64])
def test_layers_that_recur_are_fitted_with_the_width(window):
    """A request's tokens are steps one after the other where a state has no window."""
    shape = CostShape(2, 0, 1, others=((0.5, window),))
    assert (Term("width") in layer_terms(shape)) == (window == 0)
