"""What a fit knows whatever its terms: slopes of the price, and sums that are equal."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from evict_profile.cells import Cell
from evict_profile.cost_model import EXPERT_ROWS, Term
from evict_profile.fit.estimable import LeastSquares, collinear, marginal_costs
from evict_profile.fit.hinge import fit_cost
from evict_profile.fit.points import Points
from evict_profile.records import replace
from tests.factories import EXPERT_US, HEAD_US, LAYERS, MODEL, TOKEN_US
from tests.factories import known_us as layers_us

KNOWN_US = {
    "expert in each layer": 4 * EXPERT_US,
    "token on experts of its own": 4 * (TOKEN_US + 4 * EXPERT_US) + HEAD_US,
    "token on activated experts": 4 * TOKEN_US + HEAD_US,
    "token of context": 4 * 0.05,
    "request": 4 * 0.05 * 64,
}
"""Of the four layers of the tiny model, at context 64 and batch 1."""


def of(fitted):
    """A run's marginal costs by name."""
    found = marginal_costs(fitted.cost, fitted.points, fitted.validation)
    return {each.name: each for each in found}


def noiseless(cells):
    """Cells at their known cost, whose medians are known to 1 %."""
    known = np.array([layers_us(cell, cell.union) for cell in cells])
    return Points(tuple(cells), known, np.full(len(cells), 0.01))


def test_intervals_hold_the_known_costs(fitted):
    """And are narrow where the grid reaches far."""
    found = of(fitted)
    assert found.keys() == KNOWN_US.keys()
    for name, known_us in KNOWN_US.items():
        low, high = found[name].us_interval
        assert low <= known_us <= high
    low, high = found["expert in each layer"].us_interval
    assert 0.0 < high - low < 0.01 * 4 * EXPERT_US


@settings(max_examples=20)
@given(st.floats(-20.0, 20.0))
def test_they_do_not_depend_on_which_terms_hold_a_cost(fitted, moved_us):
    """Along k tokens = union + expert rows, coefficients move and prices do not."""
    part, top_k = fitted.cost.layers, MODEL.moe.top_k
    shares = {"tokens": top_k, "union": -1.0, EXPERT_ROWS: -1.0}
    along = np.array([shares.get(term.feature, 0.0) for term in part.terms])
    layers = replace(part, us_per_unit=part.us_per_unit + moved_us * along)
    moved = replace(fitted.cost, layers=layers)
    same = [(cost, fitted.points, fitted.validation) for cost in (fitted.cost, moved)]
    for before, after in zip(*(marginal_costs(*each) for each in same), strict=True):
        assert after.us == pytest.approx(before.us, rel=1e-9)
        assert after.us_interval == pytest.approx(before.us_interval, rel=1e-6)


def test_what_the_cells_leave_open_has_no_number(fitted):
    """Where U is always k tokens, an expert and a token are only known together."""
    cells = [
        Cell("layers", width, 4 * width * batch, context, batch, "balanced")
        for width, context, batch in product((1, 2, 4), (64, 256), (1, 2))
    ]
    rest = fitted.points.where("non_moe", "natural")
    points = noiseless(cells).and_those(rest)
    cost = fit_cost(points, MODEL, LAYERS)
    found = marginal_costs(cost, points, fitted.validation)
    names = [each.name for each in found]
    assert names == ["token on experts of its own", "token of context", "request"]
    assert found[0].us == pytest.approx(KNOWN_US[names[0]], rel=0.01)
    assert "4 tokens = union" in collinear(cost, points)


def test_terms_that_are_equal_on_every_cell_are_told(fitted):
    """All of the grid, whatever knots were chosen; more with one batch and context."""
    assert collinear(fitted.cost, fitted.points) == (
        "4 tokens = expert_rows[1..inf] + union",
    )
    layers = fitted.layer_points
    here = [(cell.context, cell.batch) == (64, 1) for cell in layers.cells]
    assert set(collinear(fitted.cost, layers.take(np.array(here)))) == {
        "batch = one",
        "cache = 64 one",
        "scores = 64 tokens",
        "4 tokens = expert_rows[1..inf] + union",
    }


@given(
    arrays.arrays(np.int64, (4, 4), elements=st.integers(-2, 2)),
    arrays.arrays(np.int64, 4, elements=st.integers(-2, 2)),
)
def test_a_sum_is_known_if_it_raises_no_rank(cells, asked):
    """The rows of the design with the sum beneath them, against those alone."""
    matrix = cells.astype(np.float64)
    part = LeastSquares(
        (Term("one"),) * 4,
        matrix,
        np.linalg.pinv(matrix, rcond=1e-9),
        np.zeros(4),
        np.ones(4),
    )
    beneath = np.vstack([matrix, asked])
    same = np.linalg.matrix_rank(beneath) == np.linalg.matrix_rank(matrix)
    assert part.knows(asked.astype(np.float64)) == same


def test_the_error_of_a_mean_by_hand():
    """HC3: residuals over 1 - 1/4, a quarter of each; the mean would move by one."""
    ones, inverse = np.ones((4, 1)), np.full((1, 4), 0.25)
    residual = np.array([3.0, 1.0, -1.0, 1.0])
    part = LeastSquares((Term("one"),), ones, inverse, residual, np.ones(1))
    spread = np.sqrt(12.0) / 0.75 / 4.0
    assert part.error(np.ones(1)) == pytest.approx(np.hypot(spread, 1.0))
