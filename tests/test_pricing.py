"""Unions where no batch was measured, and beyond where one was."""

import numpy as np
import pytest

from evict_profile.pricing import grown_union

WHOLE = np.array([0.0, 4.0, 6.0, 7.0, 8.0, 9.0])
ONE, FOUR = np.array([0.0, 3.0, 5.0]), np.array([0.0, 4.0, 5.0, 6.0, 6.5, 7.0])


def test_without_batches_there_is_one_growth() -> None:
    """As in a table of the schema before."""
    grown = grown_union(np.array([1.0, 2.5, 9.0]), 3, WHOLE, {})
    assert grown.tolist() == [4.0, 6.5, 9.0]


@pytest.mark.parametrize(("batch", "nearest"), [(1, 0), (1.9, 0), (2.1, 1), (64, 1)])
def test_another_batch_takes_the_nearest_in_ratio(batch: float, nearest: int) -> None:
    """2 lies between 1 and 4."""
    measured = {1: ONE, 4: FOUR}
    tokens = np.array([1.0, 2.0])
    own = (ONE, FOUR)[nearest]
    assert grown_union(tokens, batch, WHOLE, measured).tolist() == own[1:3].tolist()


def test_beyond_its_end_a_batch_rises_as_all_do() -> None:
    """And wakes no more experts than were ever seen."""
    assert grown_union(np.array([3.0, 5.0]), 1, WHOLE, {1: ONE}).tolist() == [6.0, 8.0]
    high = np.array([0.0, 4.0, 8.5])
    assert grown_union(np.array([5.0]), 1, WHOLE, {1: high}).tolist() == [9.0]
