"""Calibration never falls with the score."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.errors import ConfigError
from evict_profile.runtime import Calibration

BENT = Calibration((0.0, 0.25, 0.5, 1.0), (0.0, 0.125, 0.125, 0.75))


@given(st.lists(st.floats(0.0, 1.0, width=32), min_size=1, max_size=40))
def test_larger_scores_are_never_accepted_less(scores):
    assert np.all(np.diff(BENT.on_cpu(np.sort(np.array(scores))[None])) >= 0.0)


def test_padding_earns_nothing():
    """A score of 0 is accepted never, one of 1 as often as calibrated."""
    assert BENT.on_cpu(np.array([0.0, 1.0])).tolist() == [0.0, 0.75]


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
        ((0.0, 1.0), ((0.0, 0.5), (0.0, 0.4)), "several rows.*one is read"),
        ((0.0, 1.0), ((0.0, 0.5), (0.0,)), "equally many"),
        ((0.0, 1.0), (), "one acceptance each"),
    ],
)
def test_what_is_no_calibration_is_refused(scores, acceptances, says):
    with pytest.raises(ConfigError, match=says):
        Calibration(scores, acceptances)


@pytest.mark.parametrize("wrong", [(0.7, 0.7), (-0.1,), ("often",)])
def test_children_are_no_likelier_than_their_parent(wrong):
    with pytest.raises(ConfigError, match=r"per_rank|plain numbers"):
        Calibration((0.0, 1.0), (0.0, 1.0), wrong)
