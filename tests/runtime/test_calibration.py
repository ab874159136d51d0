"""Calibration keeps parents above children, and says the same on both paths."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.errors import PlanError
from evict_profile.runtime import Calibration

TWO = Calibration((0.0, 1.0), ((0.0, 0.8), (0.0, 0.4)))
UNEVEN = Calibration(
    (0.0, 0.1, 0.3, 0.7, 1.0),
    ((0.0, 0.1, 0.3, 0.7, 0.7), (0.0, 0.1, 0.1, 0.6, 0.7), (0.0, 0.0, 0.1, 0.3, 0.7)),
)
BENT = Calibration((0.0, 0.25, 0.5, 1.0), (0.0, 0.125, 0.125, 0.75))


@given(st.lists(st.floats(0.0, 1.0, width=32), min_size=1, max_size=40))
def test_both_paths_agree_and_never_rise(scores: list[float]) -> None:
    """Larger scores are never accepted less; numpy and torch give one answer."""
    ordered = np.sort(np.array(scores))[None]
    on_cpu = BENT.on_cpu(ordered)
    on_device = BENT.on_device(torch.device("cpu"))(torch.from_numpy(ordered), None)
    np.testing.assert_allclose(on_device.numpy(), on_cpu, atol=1e-12)
    assert np.all(np.diff(on_cpu) >= 0.0)


def test_padding_earns_nothing() -> None:
    """A score of 0 is accepted never, one of 1 as often as calibrated."""
    assert BENT.on_cpu(np.array([0.0, 1.0])).tolist() == [0.0, 0.75]


@given(
    st.lists(
        st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.integers(1, 6)),
        min_size=1,
        max_size=40,
    )
)
def test_no_child_is_above_its_parent(pairs) -> None:
    """To the last digit, on both paths, whatever the depth; and both agree."""
    parent = np.array([score for score, _, _ in pairs])
    child = parent * np.array([share for _, share, _ in pairs])
    depth = np.array([depth for _, _, depth in pairs])
    own = UNEVEN.on_device(torch.device("cpu"))
    for above, below in ((parent, child), (parent, parent)):
        upper, lower = UNEVEN.on_cpu(above, depth), UNEVEN.on_cpu(below, depth + 1)
        assert np.all(lower <= upper)
        there = own(torch.from_numpy(below), torch.from_numpy(depth + 1))
        np.testing.assert_array_equal(there.numpy(), lower)


def test_each_depth_has_its_row_and_the_last_serves_deeper() -> None:
    """Depth 0 is padding, which scores 0."""
    score = np.array([[0.5, 0.5, 0.5, 0.0]])
    depth = np.array([[1, 2, 9, 0]])
    np.testing.assert_allclose(
        TWO.on_cpu(score, depth), [[0.4, 0.2, 0.2, 0.0]], atol=1e-8
    )


def test_without_depths_the_mean_of_the_rows_serves() -> None:
    """On both paths."""
    score = np.array([0.5, 1.0])
    np.testing.assert_allclose(TWO.on_cpu(score), [0.3, 0.6])
    there = TWO.on_device(torch.device("cpu"))(torch.from_numpy(score), None)
    np.testing.assert_allclose(there.numpy(), [0.3, 0.6])


def test_one_row_ignores_depths() -> None:
    """It serves all."""
    score, depth = np.array([0.3]), np.array([4])
    assert BENT.on_cpu(score, depth) == BENT.on_cpu(score)
    assert not BENT.by_depth


def test_knots_closer_than_the_grid_are_a_step() -> None:
    """A calibration fitted to tiny scores has such."""
    steep = Calibration((0.0, 1e-12, 2e-12, 1.0), ((0.0, 0.1, 0.2, 0.2),) * 2)
    scores = np.array([0.0, 1e-6, 1.0])
    np.testing.assert_allclose(
        steep.on_cpu(scores, np.ones(3, int)), [0.0, 0.2, 0.2], atol=1e-8
    )


@pytest.mark.parametrize(
    ("scores", "acceptances", "says"),
    [
        ((0.0, 0.5), (0.0, 0.5), "from 0 to 1"),
        ((0.0, 1.0), (0.0,), "one acceptance each"),
        ((0.0, 0.5, 1.0), (0.0, 0.6, 0.5), "must not fall"),
        ((0.0, 0.5, 0.5, 1.0), (0.0, 0.1, 0.2, 0.5), "must increase"),
        ((0.0, 1.0), (0.1, 0.5), "0 at score 0"),
        ((0.0, 1.0), (0.0, 1.5), "1 at most"),
        ((0.0, 1.0), (0.0, float("nan")), "must not fall"),
        ((0.0, 1.0), ((0.0, 0.5), (0.0, 0.6)), "must not rise with depth"),
        ((0.0, 1.0), ((0.0, 0.5), (0.0,)), "equally many"),
        ((0.0, 1.0), (), "one acceptance each"),
    ],
)
def test_what_is_no_calibration_is_refused(scores, acceptances, says) -> None:
    """One sentence each."""
    with pytest.raises(PlanError, match=says):
        Calibration(scores, acceptances)


@pytest.mark.parametrize("wrong", [(0.7, 0.7), (-0.1,), ("often",)])
def test_children_are_no_likelier_than_their_parent(wrong) -> None:
    """Siblings exclude each other."""
    with pytest.raises(PlanError, match=r"per_rank|plain numbers"):
        Calibration((0.0, 1.0), (0.0, 1.0), wrong)
