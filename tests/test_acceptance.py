"""Acceptance by score: what cannot be is refused."""

import pytest

from evict_profile.acceptance import Acceptance, ConditionalAcceptance


@pytest.mark.parametrize(
    ("scores", "acceptances", "sentence"),
    [
        ((0.0, 1.0), (0.0, 1.0), "a row of acceptances for each rank"),
        ((0.0, 0.5), ((0.0, 1.0),), "from 0 to 1"),
        ((0.0, 1.0), ((1.0, 0.0),), "must not fall"),
        ((0.0, 0.5, 0.5, 1.0), ((0.0, 0.1, 0.2, 1.0),), "scores must increase"),
        ((0.0, 1.0), ((0.1, 1.0),), "0 at score 0"),
        ((0.0, 1.0), ((0.0, 1.1),), "1 at most"),
        ((0.0, 1.0), ((0.0, 1.0), (0.0,)), "equally many"),
    ],
)
def test_conditional_curves_that_are_none_are_refused(scores, acceptances, sentence):
    with pytest.raises(ValueError, match=f"conditional.*{sentence}"):
        ConditionalAcceptance(scores, acceptances)


def test_an_acceptance_that_cannot_be_is_refused():
    for rows, per_rank, sentence in (
        (((0.0, 0.5), (0.0, 0.4)), (0.5,), "several rows, and one is read"),
        (((0.0, 0.5),), (0.7, 0.7), "sum to 1 at the most"),
        (((0.0, 0.5),), (-0.1,), "sum to 1 at the most"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Acceptance("code", 1, (0.0, 1.0), rows, per_rank, {})
