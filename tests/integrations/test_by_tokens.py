"""One curve by tokens out of the staircases of several batches."""

import pytest

from evict_profile.errors import TableError
from evict_profile.integrations.by_tokens import staircases_at, token_curve
from evict_profile.table import CostTable, Staircase
from tests.integrations.tables import staircase, with_staircases


def test_the_smallest_batch_that_makes_a_count_prices_it() -> None:
    """Batch 1 speaks to its end, batch 4 from there; the difference is stated."""
    one, four = staircase(1, [10.0] * 5), staircase(4, [20.0] * 4)
    curve = token_curve([one, four])
    assert curve.tokens == (1, 2, 3, 4, 5, 6, 7)
    assert curve.step_cost_us == (10.0,) * 5 + (20.0,) * 2
    assert curve.apart == 0.5


def test_entries_below_the_batch_are_not_prices() -> None:
    """Four requests cannot verify three tokens: the curve begins at four."""
    assert token_curve([staircase(4, [20.0, 30.0])]).tokens == (4, 5)


def test_counts_that_no_batch_makes_are_gaps() -> None:
    """Between batch 1 at two tokens and batch 8 lie five that nobody measured."""
    curve = token_curve([staircase(1, [10.0, 11.0]), staircase(8, [30.0, 31.0])])
    assert curve.gaps == ((3, 7),)


def test_the_default_context_is_the_smallest(table: CostTable) -> None:
    """And its staircases come smallest batch first."""
    found = staircases_at(table, None)
    assert [(s.batch, s.context) for s in found] == [(1, 64), (2, 64)]


def test_a_context_that_was_not_measured_is_refused(table: CostTable) -> None:
    """With those that were."""
    with pytest.raises(TableError, match="context 64, 256: name one"):
        staircases_at(table, 100)


def test_steps_with_more_than_verification_are_refused(table: CostTable) -> None:
    """Drafting that is inside a step would be counted twice."""
    whole = Staircase(1, 64, (1.0, 1.0), (1.0, 1.0), (1.0, 1.0), ("verify", "draft"))
    with pytest.raises(TableError, match="hold more than verification"):
        staircases_at(with_staircases(table, whole), None)
