"""The time of a step beside verification, by batch and by level."""

import pytest

from evict_profile.runtime.drafting import DraftClock, Drafting, drafting_of

ONE = DraftClock(1, (0.0, 100.0, 250.0), 40.0, 10.0)
FOUR = DraftClock(4, (0.0, 400.0, 900.0), 80.0, 20.0)


@pytest.mark.parametrize(
    ("batch", "clock"), [(1, ONE), (2, ONE), (3, FOUR), (99, FOUR)]
)
def test_the_nearest_batch_in_ratio_is_taken_and_marked(batch, clock) -> None:
    """Of two as near, the first; the mark says which."""
    drafting = Drafting((ONE, FOUR))
    assert drafting.at(batch) == clock
    assert bool(drafting.marks(batch)) == (batch != clock.batch)


def test_a_step_without_a_draft_is_a_plain_one() -> None:
    """Level 0 drafts nothing and pays the smaller rest."""
    assert ONE.beside_us == (10.0, 140.0, 290.0)
    assert ONE.deepest == 2


@pytest.mark.parametrize("batches", [[], [{"batch": 1, "draft_us": [5.0]}]])
def test_a_file_without_clocks_is_refused(batches) -> None:
    """What reads tables turns these into a sentence."""
    rest = {"fixed_us": 0.0, "plain_fixed_us": 0.0}
    with pytest.raises(ValueError, match="draft_us from 0"):
        drafting_of({"batches": [{**each, **rest} for each in batches]})
