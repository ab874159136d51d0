"""Drawings: labels and ticks keep apart, and colours follow the page's mode."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.report.plotting import (
    colour_bar,
    dot,
    mark,
    shades,
    spread_apart,
)
from evict_profile.report.render import colours
from evict_profile.report.style import (
    ACCENT,
    PAPER,
    RAMP,
    VARIABLES,
    canvas,
    inline_svg,
)
from evict_profile.stats import Estimate


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


def test_a_colour_bar_gives_larger_values_later_shades():
    values = [1.0, 2.0, 128.0]
    with canvas() as figure:
        shade = colour_bar(figure.subplots(), values, "union U")
    shown = [shade(value) for value in values]
    assert shown == sorted(set(shown))
    assert (shown[0], shown[-1]) == (RAMP[0], RAMP[-1])


def test_a_point_shows_its_escaped_text_on_hover():
    with canvas() as figure:
        mark(figure.subplots(), 1.0, 2.0, "n < 8: 2 ms")
    drawing = inline_svg(figure, "one", "a point")
    assert "<g><title>n &lt; 8: 2 ms</title>" in drawing


def test_a_value_without_an_interval_is_hollow():
    with canvas() as figure:
        axes = figure.subplots()
        dot(axes, 1.0, Estimate(2.0, 1.0, 3.0), ACCENT, "known")
        dot(axes, 1.0, Estimate(2.0, -np.inf, np.inf), ACCENT, "unknown")
    known, unknown = axes.lines
    assert known.get_markerfacecolor() == unknown.get_markeredgecolor() == ACCENT
    assert unknown.get_markerfacecolor() == PAPER


def test_both_modes_set_every_colour():
    assert all(colours().count(f"{name}:") == 2 for name in VARIABLES.values())


def test_a_label_is_escaped():
    with canvas(3.0, 2.0) as figure:
        figure.subplots()
    assert 'aria-label="a &lt;line&gt;"' in inline_svg(figure, "one", "a <line>")
