"""Synthetic trees: what is claimed of a node is what happens to it."""

import numpy as np
import pytest

from evict_profile.bench.trees import (
    DEPTH,
    EASY,
    HARD,
    MOST_NODES,
    Difficulty,
    Trees,
    concentrations,
    draw_trees,
)


def draw(difficulty: Difficulty, steps: int = 4000, trust: float = 1.0) -> Trees:
    """Trees of one difficulty."""
    rows = np.tile(difficulty.concentration, (steps, 1))
    return draw_trees(np.random.default_rng(5), rows, trust)


def within_binomial_error(probability: np.ndarray, happened: np.ndarray) -> bool:
    """Whether a sum of independent events is within 4 standard errors of its mean."""
    error = np.sqrt((probability * (1.0 - probability)).sum())
    return bool(abs(happened.sum() - probability.sum()) < 4.0 * error)


@pytest.mark.parametrize("difficulty", [EASY, HARD])
@pytest.mark.parametrize("rank", [0, 1, 5, 20, 59])
def test_a_node_is_accepted_as_often_as_its_path_probability(
    difficulty: Difficulty, rank: int
) -> None:
    """At each rank of the tree, within binomial error."""
    trees = draw(difficulty)
    assert within_binomial_error(trees.path_prob[:, rank], trees.accepted[:, rank])


@pytest.mark.parametrize("low", [0.0, 0.05, 0.2, 0.5, 0.8])
def test_acceptance_is_calibrated_within_a_band_of_scores(low: float) -> None:
    """Not only on average over steps, but at any score; depth 1 keeps events apart."""
    trees = draw(HARD)
    band = (trees.path_prob >= low) & (trees.path_prob < low + 0.2)
    chosen = band & (trees.depth == 1)
    assert within_binomial_error(trees.path_prob[chosen], trees.accepted[chosen])


def test_an_overconfident_drafter_is_right_trust_times_per_token() -> None:
    """Acceptance is path probability times trust ** depth, as claimed and as drawn."""
    trees = draw(EASY, trust=0.7)
    scaled = trees.path_prob * 0.7**trees.depth
    np.testing.assert_allclose(trees.accept_prob, scaled)
    assert within_binomial_error(trees.accept_prob[:, 0], trees.accepted[:, 0])
    assert within_binomial_error(trees.accept_prob[:, 9], trees.accepted[:, 9])


def test_accepted_nodes_of_the_best_k_form_one_path_from_the_root() -> None:
    """Depths 1, 2, ... once each, for every k: the best k are ancestor-closed."""
    trees = draw(EASY, steps=300)
    for nodes in range(1, MOST_NODES + 1):
        cut = trees.best(nodes)
        reached = np.where(cut.accepted, cut.depth, 0)
        assert np.array_equal(reached.max(axis=1), cut.accepted.sum(axis=1))


def test_nodes_stand_best_first_and_siblings_share_less_than_one() -> None:
    """Path probabilities never rise, and each depth sums to at most one."""
    trees = draw(HARD, steps=300)
    assert np.all(np.diff(trees.path_prob, axis=1) <= 0.0)
    for depth in range(1, DEPTH + 1):
        at_depth = np.where(trees.depth == depth, trees.path_prob, 0.0)
        assert np.all(at_depth.sum(axis=1) <= 1.0 + 1e-9)


def test_easy_text_commits_more_than_hard_text() -> None:
    """The two difficulties lie apart, as EAGLE-3's tasks do."""
    easy, hard = (draw(d).path_prob.sum(axis=1).mean() for d in (EASY, HARD))
    assert easy > 3.0
    assert hard < 1.7


def test_steps_are_easy_in_the_share_asked_for() -> None:
    """Each step one difficulty or the other."""
    rows = concentrations(np.random.default_rng(0), 4000, 0.25)
    easy = np.all(rows == EASY.concentration, axis=1)
    assert np.all(easy | np.all(rows == HARD.concentration, axis=1))
    assert within_binomial_error(np.full(4000, 0.25), easy)
