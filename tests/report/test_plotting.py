"""Labels and ticks that do not run into one another."""

from itertools import pairwise

import pytest

from evict_profile.report.plotting import apart, shades, spread_apart


def test_free_labels_stay() -> None:
    """What does not touch is not moved."""
    assert spread_apart([0.0, 5.0, 9.0], gap=1.0) == [0.0, 5.0, 9.0]


def test_touching_labels_move_apart_about_their_mean() -> None:
    """A block keeps its place."""
    assert spread_apart([4.0, 4.2], gap=1.0) == pytest.approx([3.6, 4.6])


def test_blocks_that_meet_become_one() -> None:
    """Every gap holds, however many labels fall together."""
    heights = spread_apart([1.0, 1.0, 1.0, 1.5, 2.0], gap=1.0)
    gaps = [b - a for a, b in pairwise(heights)]
    assert min(gaps) == pytest.approx(1.0)


def test_shades_differ_and_follow_order() -> None:
    """Two values get the two ends of the ramp."""
    found = shades([128, 8])
    assert list(found) == [8, 128]
    assert found[8] < found[128]


def test_ticks_keep_the_largest() -> None:
    """The end of an axis is always named."""
    assert apart([8, 14, 24, 125, 128]) == [128, 24, 8]
