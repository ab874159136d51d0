"""Cells and samples keep what they hold, and latencies are read fairly from them."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.cells import (
    CELL_FIELDS,
    UNTIMED,
    Cell,
    Sample,
    cell_of,
    cells_of,
    frame_of,
    places_of,
    to_frame,
    with_latency,
)

CELL = Cell("layers", 4, 8, 64, 2, "balanced")

cells = st.builds(
    Cell,
    part=st.sampled_from(["layers", "non_moe"]),
    width=st.integers(1, 256),
    union=st.integers(0, 256),
    context=st.integers(1, 1 << 17),
    batch=st.integers(1, 64),
    split=st.sampled_from(["balanced", "natural"]),
)
positive = st.floats(1e-3, 1e9)


def sample(clock_us, reference_us=math.nan, **fields):
    ran = replace(UNTIMED, clock_us=clock_us, reference_us=reference_us)
    return Sample(CELL, 1, 0, 7, ran, **fields)


def test_frame_of_nothing_has_all_columns():
    """An empty frame can be asked for any field of a sample."""
    frame = to_frame([])
    assert set(CELL_FIELDS) | {"status", "clock_us", "round"} <= set(frame.columns)
    assert frame.empty


@given(cells)
def test_cell_of_row_is_the_cell_itself(cell):
    """A cell read back from a row has the same repr, from which seeds are made."""
    frame = to_frame([Sample(cell, 1, 0, 7)])
    assert repr(cell_of(next(frame.itertuples()))) == repr(cell)
    assert repr(cells_of(frame)) == repr([cell])


@given(st.lists(positive, min_size=2, max_size=9), st.floats(0.1, 10.0))
def test_reference_cancels_a_common_slowdown(clocks, slow):
    """A sample slowed with its reference counts as if it had not been slowed."""
    calm = to_frame([sample(c, reference_us=100.0) for c in clocks])
    slowed = calm.copy()
    slowed.loc[0, ["clock_us", "reference_us"]] *= slow
    relative = with_latency(slowed)["latency_us"] / with_latency(calm)["latency_us"]
    # One scale for all: the median reference, which the slow sample may have moved.
    assert relative.to_numpy() == pytest.approx(relative.iloc[0], rel=1e-9)


def test_latency_is_a_time_at_the_usual_reference():
    """At the reference that is usual, latency is the clock itself."""
    slow = sample(30.0, 200.0)
    frame = to_frame([sample(10.0, 99.0), sample(20.0, 100.0), slow])
    frame = pd.concat([frame, to_frame([sample(10.0, 101.0), slow])])
    latency = with_latency(frame)["latency_us"].to_numpy()
    assert latency == pytest.approx([1000 / 99, 20.0, 15.0, 1000 / 101, 15.0])


@given(st.lists(positive, min_size=1, max_size=9))
def test_clock_without_reference_is_taken_as_it_is(clocks):
    frame = with_latency(to_frame([sample(c) for c in clocks]))
    assert frame["latency_us"].tolist() == clocks


def test_failed_samples_have_no_latency():
    bad = [sample(1e9, 1.0, status=s) for s in ("oom", "crashed", "mismatch")]
    frame = with_latency(to_frame([sample(10.0, 100.0), *bad]))
    assert frame["latency_us"].tolist() == [10.0]


@given(st.lists(cells, max_size=5))
def test_arrays_follow_the_cells(given_cells):
    """Each axis is a float array in the order of the cells; tokens are n x batch."""
    frame = frame_of(given_cells)
    tokens, union, *others = places_of(frame)
    assert tokens.tolist() == [c.width * c.batch for c in given_cells]
    assert union.tolist() == [c.union for c in given_cells]
    assert all(axis.dtype == np.float64 for axis in (tokens, union, *others))
    assert list(frame.index) == cells_of(frame) == given_cells


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (CELL, "U=8 n=4 context=64 batch=2 balanced"),
        (replace(CELL, part="non_moe", union=0), "non-MoE n=4 context=64 batch=2"),
        (replace(CELL, union=0, split="natural"), "natural n=4"),
    ],
)
def test_cell_in_words(cell, words):
    assert str(cell).startswith(words)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("clock_us", wrong) for wrong in (None, -1.0, 0.0, np.inf, "text")),
        *(("reference_us", wrong) for wrong in (0.0, -1.0)),
        ("at_unix", np.nan),
        ("width", None),
        ("split", None),
    ],
)
def test_a_sample_that_cannot_be_is_left_out(column, value):
    """Whatever a file holds; the others stay as they are."""
    cell = Cell("layers", 4, 8, 64, 1, "balanced")
    frame = to_frame(
        [Sample(cell, 1, n, n, replace(UNTIMED, clock_us=100.0)) for n in range(3)]
    )
    frame[column] = frame[column].astype(object)
    frame.loc[1, column] = value
    assert with_latency(frame).index.tolist() == [0, 2]
