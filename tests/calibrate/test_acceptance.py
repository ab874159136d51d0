"""Acceptance learnt from nodes whose truth is known."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evict_profile.calibrate.acceptance import (
    CANDIDATES,
    MOST_KNOTS,
    RAW,
    Nodes,
    fit_conditional,
    fit_isotonic,
    nodes_of,
    per_rank_acceptance,
)
from evict_profile.records import replace
from evict_profile.runtime.calibration import Calibration
from evict_profile.traces import About, Reply, Trace
from evict_profile.traces.trace import make_step
from tests.traces.synthetic import Plan, make_trace


def made_nodes(count, trust, seed=0):
    """Independent nodes, accepted with trust ** depth times their path probability."""
    rng = np.random.default_rng(seed)
    path_prob = rng.random(count) ** 3
    depth = rng.integers(1, 6, count)
    rank = rng.integers(0, 8, count)
    return lone_nodes(
        path_prob, depth, rank, rng.random(count) < path_prob * trust**depth
    )


def lone_nodes(path_prob, depth, rank, accepted, prompts=20):
    """Nodes each of which is a tree, all but its last level certain."""
    count = len(path_prob)
    row = np.arange(count)
    return Nodes(
        path_prob=path_prob,
        depth=depth,
        rank=rank,
        accepted=accepted,
        prompt=row % prompts,
        tree=row,
        place=np.zeros(count, dtype=np.int64),
        own_prob=path_prob,
        parent=np.full(count, -1),
        parent_accepted=np.ones(count, dtype=bool),
    )


def probe(path_prob, depth):
    size = np.ones(len(path_prob), dtype=np.int64)
    return lone_nodes(path_prob, depth * size, 0 * size, size > 0)


def test_a_curve_recovers_a_known_miscalibration():
    """Promises of which 0.8 are kept."""
    nodes = made_nodes(200_000, trust=0.8)
    shallow = fit_isotonic(nodes.take(nodes.depth == 1))
    score = np.linspace(0.05, 0.95, 10)
    assert shallow(probe(score, 1)) == pytest.approx(score * 0.8, abs=0.06)


@given(st.integers(0, 2**32 - 1), st.integers(1, 3000), st.floats(0.0, 1.0))
@example(1143028779, 126, 0.5)
def test_a_runtime_takes_the_curves_and_reads_them_alike(seed, count, trust):
    """Increasing knots from 0 to 1, at most 32, and acceptances that never fall."""
    nodes = made_nodes(count, trust, seed)
    curves = fit_isotonic(nodes)
    assert len(curves.scores) <= MOST_KNOTS
    scores, (row,) = curves.knots
    assert np.array_equal(
        Calibration(scores, row).on_cpu(nodes.path_prob), curves(nodes)
    )


def test_scores_at_the_ends_are_taken():
    """Probabilities that underflowed or are certain make no knots of their own."""
    rng = np.random.default_rng(0)
    nodes = made_nodes(300, trust=1.0)
    ends = rng.integers(0, 2, 300).astype(np.float64)
    certain = replace(nodes, path_prob=ends, accepted=ends > 0)
    curves = fit_isotonic(certain)
    assert curves.scores.tolist() == [0.0, 1.0]
    assert curves.acceptances[0, 1] == pytest.approx(1.0, abs=0.01)


def test_raw_is_the_path_probability():
    nodes = made_nodes(100, trust=0.5)
    assert RAW(nodes) == pytest.approx(nodes.path_prob)


@pytest.mark.parametrize("name", CANDIDATES)
def test_every_candidate_gives_chances(name):
    nodes = made_nodes(2000, trust=0.8)
    chance = CANDIDATES[name](nodes)(nodes)
    assert chance.shape == (2000,)
    assert np.all((chance >= 0.0) & (chance <= 1.0))


def _hedging_trace():
    """Trees of a drafter that is surer of its best child than it says.

    The root has four children of 0.4, 0.3, 0.2, 0.1, each of these as many; whatever
    the drafter says, the best child is right in nine of ten cases.
    """
    rng, share = np.random.default_rng(0), np.array([0.4, 0.3, 0.2, 0.1])
    parent = np.array([-1] * 4 + [0] * 4 + [1] * 4)
    path_prob = np.concatenate([share, 0.4 * share, 0.3 * share])
    steps = []
    for position in range(400):
        first, second = (0 if rng.random() < 0.9 else 1 for _ in range(2))
        accepted = np.zeros(12, bool)
        accepted[[first, 4 + 4 * first + second]] = True
        steps.append(make_step(position, parent, path_prob, accepted))
    replies = tuple(Reply("made", i, 0, 0.0, tuple(steps[i::10])) for i in range(10))
    return Trace(About(), replies)


def test_conditional_acceptances_multiply_what_each_level_is_worth():
    """0.9 at the first level, 0.9 of that at the second, whatever was promised.

    So the best child's best child comes before the root's second child.
    """
    replies = _hedging_trace().replies
    nodes = nodes_of(replies[:1])
    tree = fit_conditional(nodes_of(replies))(nodes)[:12]
    assert nodes.path_prob[4] < nodes.path_prob[1]
    assert tree[[0, 1, 4, 5, 8]] == pytest.approx(
        [0.9, 0.1, 0.81, 0.09, 0.09], abs=0.05
    )
    assert np.all(tree[4:8] <= tree[0])
    assert np.all(tree[8:] <= tree[1])


def test_rows_know_their_parents():
    """Also those of the second tree alone."""
    nodes = nodes_of(_hedging_trace().replies)
    for rows in (nodes, nodes.take(nodes.tree == 1)):
        assert rows.parent[9] == rows.parent[8] == 1
        assert rows.own_prob[[2, 9]] == pytest.approx([0.2, 0.3])
        path_prob = rows.own_prob * np.append(rows.path_prob, 1.0)[rows.parent]
        assert path_prob == pytest.approx(rows.path_prob)
    assert nodes.parent_accepted[:4].all()
    assert np.array_equal(nodes.parent_accepted[4:8], [nodes.accepted[0]] * 4)
    assert nodes.tree[11:13].tolist() == [0, 1]


def _tree(accepted):
    """Root with nodes 0, 1, 2; node 0 with 3, 4; node 1 with 5."""
    path_prob = [0.5, 0.3, 0.1, 0.4, 0.05, 0.2]
    hits = [node in accepted for node in range(6)]
    return make_step(0, [-1, -1, -1, 0, 0, 1], path_prob, hits)


def test_per_rank_counts_accepted_and_expanded_parents():
    """Node 3 is accepted and was never expanded; node 1 was, and is not accepted."""
    steps = [_tree([0, 3]), _tree([1]), _tree([])]
    # Accepted parents with children: three roots, node 0 once, node 1 once.
    assert per_rank_acceptance(steps, topk=4) == pytest.approx([2 / 5, 1 / 5, 0.0, 0.0])


def test_per_rank_of_a_known_drafter():
    """Each level goes on with the trust that the drafter deserves, or a little less."""
    trace = make_trace(Plan(prompts=8, tokens=60, trust=0.5, workloads=("code",)))
    shares = per_rank_acceptance(trace.steps, trace.about.topk)
    # Four children and "none" share a Dirichlet draw evenly, and half is trusted.
    assert shares.sum() == pytest.approx(0.5 * 0.8, abs=0.06)
    assert np.all(np.diff(shares) <= 0.0)
    assert shares.sum() <= 1.0


def test_per_rank_without_an_accepted_parent_is_zero():
    assert per_rank_acceptance([make_step(0, [], [], [])], topk=3).tolist() == [
        0.0,
        0.0,
        0.0,
    ]
