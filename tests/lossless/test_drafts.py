"""Shapes, laws and scores of draft trees."""

from fractions import Fraction
from random import Random

import pytest

from evict_profile.lossless.enumeration import (
    CHAIN,
    FORK,
    TREES,
    Tree,
    coin_world,
    draftings,
    seeded_world,
)
from evict_profile.lossless.rules import SCORES, Drafts, Score


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: str(tree.parents))
@pytest.mark.parametrize("drafts", ["topk", "sampled"])
def test_drafts_have_probability_one_in_all(tree: Tree, drafts: Drafts) -> None:
    """Sampled drafts share out one; a top-k tree is a single draft."""
    world = seeded_world(Random(3), 3)
    found = draftings(world, tree, drafts, "own", ())
    assert sum(draft.weight for draft in found) == 1
    assert drafts == "sampled" or len(found) == 1


def test_top_k_siblings_hold_different_tokens_best_first() -> None:
    """The elder sibling is the drafter's first choice, the younger its second."""
    (draft,) = draftings(coin_world(), FORK, "topk", "own", ())
    assert draft.tokens == (0, 1, 0)


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        ("own", (Fraction(1, 10), Fraction(1, 20), Fraction(9, 200))),
        ("shifted", (Fraction(1), Fraction(1, 10), Fraction(1, 20))),
        ("max", (Fraction(9, 10), Fraction(9, 20), Fraction(81, 200))),
    ],
)
def test_scores_of_a_chain_by_hand(
    score: Score, expected: tuple[Fraction, ...]
) -> None:
    """The draft 1, 0, 0 in the coin world, whose drafter is fair after a 1."""
    found = draftings(coin_world(), CHAIN, "sampled", score, ())
    (draft,) = [draft for draft in found if draft.tokens == (1, 0, 0)]
    assert draft.scores == expected


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("tree", TREES, ids=lambda tree: str(tree.parents))
def test_no_child_scores_above_its_parent(tree: Tree, score: Score) -> None:
    """So that the best n nodes, and those above a bound, are closed under parents."""
    for draft in draftings(seeded_world(Random(1), 3), tree, "sampled", score, ()):
        for node, parent in enumerate(tree.parents):
            assert parent < 0 or draft.scores[node] <= draft.scores[parent]
