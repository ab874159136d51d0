"""Medians with their errors, and the features of cells."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.cells import Cell
from evict_profile.config import load_model
from evict_profile.fit.points import features_of, points_of

CELL = Cell("layers", 4, 8, 64, 2, "balanced")


@given(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=30))
def test_a_point_is_the_median_of_its_cell(values: list[float]) -> None:
    """One point a cell, at the median, with an error above its floor."""
    points = points_of({CELL: values})
    assert points.latency_us[0] == pytest.approx(np.median(values))
    assert points.relative_error[0] >= 0.003


def test_a_failed_cell_is_no_point() -> None:
    """Cells without latencies are left out."""
    other = Cell("layers", 8, 8, 64, 2, "balanced")
    assert points_of({CELL: [1.0], other: []}).cells == (CELL,)


def test_features_count_rows_of_an_expert() -> None:
    """8 tokens x top-4 over 8 experts are 4 rows each; each request reads its cache."""
    features = features_of(load_model("tiny"), [CELL])
    assert features["rows"][0] == 4.0
    assert features["cache"][0] == 128.0
    assert features["scores"][0] == 8 * 64


def test_redrawn_points_keep_their_number() -> None:
    """A bootstrap replicate has as many points as its source."""
    cells = [Cell("layers", n, 8, 64, 1, "balanced") for n in (2, 4, 8)]
    points = points_of({cell: [1.0, 2.0, 3.0] for cell in cells})
    assert len(points.redraw(np.random.default_rng(0))) == 3
