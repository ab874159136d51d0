"""Drawings: labels and ticks keep apart, and colours follow the page's mode."""

import warnings
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.report.plotting import key, shades, spread_apart
from evict_profile.report.render import colours
from evict_profile.report.style import VARIABLES, canvas, inline_svg


@pytest.mark.parametrize(
    ("heights", "spaced"),
    [
        pytest.param([0.0, 5.0, 9.0], [0.0, 5.0, 9.0], id="free"),
        pytest.param([4.0, 4.2], [3.6, 4.6], id="about their mean"),
    ],
)
def test_labels_move_only_as_far_as_they_touch(heights, spaced):
    assert spread_apart(heights, gap=1.0) == pytest.approx(spaced)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=9).map(sorted))
def test_labels_keep_their_gap_and_their_mean(heights):
    spaced = spread_apart(heights, gap=1.0)
    assert min(b - a for a, b in pairwise(spaced)) >= 1.0 - 1e-9
    assert sum(spaced) == pytest.approx(sum(heights), abs=1e-9)


def test_shades_differ_and_follow_order():
    found = shades([128, 8])
    assert list(found) == [8, 128]
    assert found[8] < found[128]


def test_a_key_of_many_values_fits_beside_the_drawing():
    """A row a shade; matplotlib warns where an axis has no room left."""
    values = shades(range(1, 26))
    with warnings.catch_warnings(), canvas(9.6, 3.9) as figure:
        warnings.simplefilter("error")
        axes = figure.subplots()
        key(axes, values, title="U", x=1.09)
        inline_svg(figure, "many", "many values")
    legend = axes.get_legend()
    assert legend
    rows = [text.get_text() for text in legend.get_texts()]
    assert rows[0] == "1..2" and rows[-1] == "24..25"
    assert len(rows) == len(set(values.values()))


def test_both_modes_set_every_colour():
    assert all(colours().count(f"{name}:") == 2 for name in VARIABLES.values())


def test_a_label_is_escaped():
    with canvas(3.0, 2.0) as figure:
        figure.subplots()
    assert 'aria-label="a &lt;line&gt;"' in inline_svg(figure, "one", "a <line>")
