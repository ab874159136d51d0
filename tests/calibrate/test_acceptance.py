"""Acceptance learnt from nodes whose truth is known."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evict_profile.calibrate import acceptance
from evict_profile.calibrate.acceptance import CANDIDATES, MOST_KNOTS, fit_isotonic
from evict_profile.runtime import Calibration
from evict_profile.traces import Nodes
from tests.traces.steps import make_nodes
from tests.traces.synthetic import Plan, make_trace


def lone_nodes(path_prob, accepted):
    row = np.arange(len(path_prob))
    return Nodes(row, np.full(len(row), -1), path_prob, accepted)


def made_nodes(count, trust, seed=0):
    rng = np.random.default_rng(seed)
    path_prob = rng.random(count) ** 3
    return lone_nodes(path_prob, rng.random(count) < path_prob * trust)


def test_a_curve_recovers_a_known_miscalibration():
    score = np.linspace(0.05, 0.95, 10)
    chance = fit_isotonic(made_nodes(200_000, trust=0.8))(lone_nodes(score, score > 0))
    assert chance == pytest.approx(score * 0.8, abs=0.06)


@given(st.integers(0, 2**32 - 1), st.integers(1, 3000), st.floats(0.0, 1.0))
@example(1143028779, 126, 0.5)
def test_a_runtime_takes_the_curves_and_reads_them_alike(seed, count, trust):
    """Increasing knots from 0 to 1, at most 32, and acceptances that never fall."""
    nodes = made_nodes(count, trust, seed)
    curves = fit_isotonic(nodes)
    assert len(curves.scores) <= MOST_KNOTS
    scores, (row,) = curves.knots
    read = Calibration(scores, row).on_cpu(nodes.path_prob)
    assert np.array_equal(read, curves(nodes))


def test_scores_at_the_ends_are_taken():
    """Probabilities that underflowed or are certain make no knots of their own."""
    ends = np.random.default_rng(0).integers(0, 2, 300).astype(np.float64)
    curves = fit_isotonic(lone_nodes(ends, ends > 0))
    assert curves.scores.tolist() == [0.0, 1.0]
    assert curves.acceptances[0, 1] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("name", CANDIDATES)
def test_every_candidate_gives_chances(name):
    nodes = make_trace(Plan(prompts=2)).nodes
    chance = CANDIDATES[name](nodes)(nodes)
    assert np.all((chance >= 0.0) & (chance <= 1.0))
    assert np.array_equal(acceptance.RAW(nodes), nodes.path_prob)


def hedging_trees():
    """Trees of a drafter that is surer of its best child than it claims.

    The root has four children of 0.4, 0.3, 0.2, 0.1, each of these as many; whatever
    the drafter claims, the best child is right in nine of ten cases.
    """
    rng, share = np.random.default_rng(0), np.array([0.4, 0.3, 0.2, 0.1])
    path_prob = np.concatenate([share, 0.4 * share, 0.3 * share])
    for _ in range(400):
        first, second = (0 if rng.random() < 0.9 else 1 for _ in range(2))
        accepted = np.zeros(12, bool)
        accepted[[first, 4 + 4 * first + second]] = True
        yield [-1] * 4 + [0] * 4 + [1] * 4, path_prob, accepted


def test_conditional_acceptances_multiply_what_each_level_is_worth():
    """0.9 at the first level, 0.9 of that at the second, whatever was claimed.

    So the best child's best child comes before the root's second child.
    """
    nodes = make_nodes(*hedging_trees())
    tree = acceptance.fit_conditional(nodes)(nodes)[:12]
    assert nodes.path_prob[4] < nodes.path_prob[1]
    expected = [0.9, 0.1, 0.81, 0.09, 0.09]
    assert tree[[0, 1, 4, 5, 8]] == pytest.approx(expected, abs=0.05)
    assert np.all(tree[4:8] <= tree[0])
    assert np.all(tree[8:] <= tree[1])


def test_per_rank_counts_accepted_and_expanded_parents():
    """Root with nodes 0, 1, 2; node 0 with 3, 4; node 1 with 5. Node 3 is accepted and
    was never expanded; node 1 was, and is not accepted in the first tree."""
    path_prob = [0.5, 0.3, 0.1, 0.4, 0.05, 0.2]
    parent, trees = [-1, -1, -1, 0, 0, 1], ([0, 3], [1], [])
    accepted = [[node in own for node in range(6)] for own in trees]
    nodes = make_nodes(*((parent, path_prob, each) for each in accepted))
    # Accepted parents with children: three roots, node 0 once, node 1 once.
    shares = acceptance.per_rank_acceptance(nodes, 4)
    assert shares == pytest.approx([2 / 5, 1 / 5, 0.0, 0.0])


def test_per_rank_of_a_known_drafter():
    trace = make_trace(Plan(prompts=8, tokens=60, trust=0.5, workloads=("code",)))
    shares = acceptance.per_rank_acceptance(trace.nodes, trace.about.topk)
    # Four children and "none" share a Dirichlet draw evenly, and half is trusted.
    assert shares.sum() == pytest.approx(0.5 * 0.8, abs=0.06)
    assert np.all(np.diff(shares) <= 0.0)
    none = acceptance.per_rank_acceptance(make_nodes(([], [], [])), 3)
    assert none.tolist() == [0.0] * 3
