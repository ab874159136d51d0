"""Candidates on nodes whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evict_profile.calibrate.calibrators import (
    CANDIDATES,
    MOST_KNOTS,
    RAW,
    Curves,
    fit_curves,
    fit_links,
    fit_logistic,
)
from evict_profile.calibrate.nodes import Nodes, nodes_of
from evict_profile.runtime.calibration import Calibration
from evict_profile.stats import Bools, Floats, Ints
from evict_profile.traces import About, Reply, Trace
from evict_profile.traces.trace import make_step


def made_nodes(count: int, trust: float, seed: int = 0) -> Nodes:
    """Independent nodes, accepted with trust ** depth times their path probability."""
    rng = np.random.default_rng(seed)
    path_prob = rng.random(count) ** 3
    depth = rng.integers(1, 6, count)
    rank = rng.integers(0, 8, count)
    return lone_nodes(
        path_prob, depth, rank, rng.random(count) < path_prob * trust**depth
    )


def lone_nodes(
    path_prob: Floats, depth: Ints, rank: Ints, accepted: Bools, prompts: int = 20
) -> Nodes:
    """Nodes each of which is a tree, all but its last level certain."""
    count = len(path_prob)
    level_prob, level_rank = np.ones((count, 5)), np.zeros((count, 5), dtype=np.int64)
    row = np.arange(count)
    level_prob[row, depth - 1], level_rank[row, depth - 1] = path_prob, rank
    return Nodes(
        path_prob=path_prob,
        depth=depth,
        rank=rank,
        accepted=accepted,
        prompt=row % prompts,
        tree=row,
        place=np.zeros(count, dtype=np.int64),
        level_prob=level_prob,
        level_rank=level_rank,
        parent_accepted=np.ones(count, dtype=bool),
    )


def probe(path_prob: Floats, depth: int) -> Nodes:
    """Nodes to ask a calibrator about."""
    size = np.ones(len(path_prob), dtype=np.int64)
    return lone_nodes(path_prob, depth * size, 0 * size, size > 0)


@pytest.mark.parametrize("depth", range(1, 6))
def test_by_depth_recovers_a_known_miscalibration(depth: int) -> None:
    """Promises that keep 0.8 of themselves a level are seen through at each depth."""
    curves = fit_curves(made_nodes(200_000, trust=0.8), depths=5, ranks=1)
    score = np.linspace(0.05, 0.95, 10)
    assert curves(probe(score, depth)) == pytest.approx(score * 0.8**depth, abs=0.06)


def test_one_curve_is_right_on_average_only() -> None:
    """Without depth, a deep node is promised too much and a shallow one too little."""
    curves = fit_curves(made_nodes(100_000, trust=0.8), depths=1, ranks=1)
    score = np.array([0.5])
    assert curves(probe(score, 5))[0] > 0.5 * 0.8**5 + 0.05
    assert curves(probe(score, 1))[0] < 0.5 * 0.8 - 0.05


@given(st.integers(0, 2**32 - 1), st.integers(1, 3000), st.floats(0.0, 1.0))
def test_curves_are_what_a_runtime_takes(seed: int, count: int, trust: float) -> None:
    """Increasing knots from 0 to 1, at most 32, rows that neither fall nor cross."""
    curves = fit_curves(made_nodes(count, trust, seed), depths=5, ranks=1)
    assert len(curves.scores) <= MOST_KNOTS
    rows = tuple(map(tuple, curves.acceptances[0].tolist()))
    Calibration(tuple(curves.scores.tolist()), rows)


@given(st.integers(0, 2**32 - 1))
def test_runtime_reads_the_curves_alike(seed: int) -> None:
    """What was held out is what a decision will see."""
    nodes = made_nodes(500, 0.7, seed)
    curves = fit_curves(nodes, depths=4, ranks=1)
    rows = tuple(map(tuple, curves.acceptances[0].tolist()))
    table = Calibration(tuple(curves.scores.tolist()), rows)
    told = table.on_cpu(nodes.path_prob, nodes.depth)
    assert told == pytest.approx(curves(nodes), abs=1e-6)


def test_a_depth_without_nodes_does_as_its_neighbours() -> None:
    """Deeper than anything seen: no higher than the depth before."""
    nodes = made_nodes(20_000, trust=0.9)
    shallow = nodes.take(nodes.depth <= 2)
    curves = fit_curves(shallow, depths=5, ranks=1)
    score = np.linspace(0.1, 0.9, 9)
    assert np.all(curves(probe(score, 5)) <= curves(probe(score, 2)) + 1e-9)
    assert curves(probe(score, 5)) == pytest.approx(curves(probe(score, 2)), abs=0.05)


def test_scores_at_the_ends_are_taken() -> None:
    """Probabilities that underflowed or are certain make no knots of their own."""
    rng = np.random.default_rng(0)
    nodes = made_nodes(300, trust=1.0)
    ends = rng.integers(0, 2, 300).astype(np.float64)
    certain = replace(nodes, path_prob=ends, accepted=ends > 0)
    curves = fit_curves(certain, depths=1, ranks=1)
    assert curves.scores.tolist() == [0.0, 1.0]
    assert curves.acceptances[0, 0, 1] == pytest.approx(1.0, abs=0.01)


def test_raw_is_the_path_probability() -> None:
    """The first candidate changes nothing."""
    nodes = made_nodes(100, trust=0.5)
    assert RAW(nodes) == pytest.approx(nodes.path_prob)


def test_logistic_recovers_a_logistic_truth() -> None:
    """Newton's steps arrive at the coefficients that made the data."""
    nodes = made_nodes(200_000, trust=1.0)
    x = 0.5 + 0.9 * np.log(nodes.path_prob) - 0.3 * nodes.depth - 0.2 * nodes.rank
    chance = 1.0 / (1.0 + np.exp(-x))
    rng = np.random.default_rng(1)
    seen = replace(nodes, accepted=rng.random(len(nodes)) < chance)
    assert fit_logistic(seen)(nodes) == pytest.approx(chance, abs=0.02)


def test_logistic_survives_nodes_that_all_agree() -> None:
    """Separable data have no finite optimum without the ridge."""
    nodes = made_nodes(200, trust=0.0)
    assert np.all(fit_logistic(nodes)(nodes) < 0.05)


@pytest.mark.parametrize("name", CANDIDATES)
def test_every_candidate_gives_chances(name: str) -> None:
    """All candidates fit and stay between 0 and 1."""
    nodes = made_nodes(2000, trust=0.8)
    chance = CANDIDATES[name](nodes)(nodes)
    assert chance.shape == (2000,)
    assert np.all((chance >= 0.0) & (chance <= 1.0))


def test_by_rank_sees_what_the_others_cannot() -> None:
    """Where acceptance depends on rank alone, only that candidate follows."""
    nodes = made_nodes(50_000, trust=1.0)
    rng = np.random.default_rng(2)
    first = nodes.rank == 0
    accepted = rng.random(len(nodes)) < np.where(first, 0.9, 0.1) * nodes.path_prob
    seen = replace(nodes, accepted=accepted)
    curves = CANDIDATES["isotonic by depth and rank"](seen)
    assert isinstance(curves, Curves)
    chance = curves(probe(np.array([0.8]), 1))
    assert chance[0] == pytest.approx(0.72, abs=0.05)


def _hedging_trace() -> Trace:
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


def test_links_multiply_what_each_level_is_worth() -> None:
    """0.9 at the first level, 0.9 of that at the second, whatever was promised."""
    nodes = nodes_of(_hedging_trace().replies[:1])
    links = fit_links(nodes_of(_hedging_trace().replies))
    tree = links(nodes)[:12]
    assert tree[[0, 1, 4, 5, 8]] == pytest.approx(
        [0.9, 0.1, 0.81, 0.09, 0.09], abs=0.05
    )
    assert np.all(tree[4:8] <= tree[0])
    assert np.all(tree[8:] <= tree[1])


def test_links_rank_nodes_anew() -> None:
    """The best child's best child comes before the root's second child."""
    nodes = nodes_of(_hedging_trace().replies[:1])
    tree = fit_links(nodes_of(_hedging_trace().replies))(nodes)[:12]
    assert nodes.path_prob[4] < nodes.path_prob[1]
    assert tree[4] > tree[1]


def test_rows_know_their_path() -> None:
    """Probability and rank at every level above, and whether the parent held."""
    nodes = nodes_of(_hedging_trace().replies)
    assert nodes.level_prob[9] == pytest.approx([0.3, 0.3])
    assert nodes.level_rank[9].tolist() == [1, 1]
    assert nodes.level_prob[2] == pytest.approx([0.2, 1.0])
    assert nodes.level_prob.prod(axis=1) == pytest.approx(nodes.path_prob)
    assert nodes.parent_accepted[:4].all()
    assert np.array_equal(nodes.parent_accepted[4:8], [nodes.accepted[0]] * 4)
    assert nodes.tree[11:13].tolist() == [0, 1]
