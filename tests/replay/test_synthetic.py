"""Synthetic traces: what is claimed of a node is what happens to it."""

import numpy as np
import pytest

from evict_profile.errors import ConfigError
from evict_profile.replay.synthetic import (
    EASY,
    MIXES,
    NODES,
    Mix,
    concentrations,
    grow,
    synthetic_trace,
)

TOKENS = 1500


def within_binomial_error(probability, happened):
    error = np.sqrt((probability * (1.0 - probability)).sum())
    return bool(abs(happened.sum() - probability.sum()) < 4.0 * error)


@pytest.mark.parametrize("name", ["easy", "hard", "overconfident", "underconfident"])
def test_a_node_is_accepted_as_often_as_it_claims(name):
    """Times trust for each level; at most one node of a depth is accepted."""
    rng, mix = np.random.default_rng(5), MIXES[name]
    nodes = grow(rng, concentrations(rng, mix, TOKENS), 6, 10**6, mix.trust)
    assert len(nodes) == TOKENS * (8 + 5 * 64)
    for depth in (1, 3, 6):
        own = nodes.depth == depth
        claimed, hits = (
            np.bincount(nodes.step[own], values[own], TOKENS)
            for values in (nodes.path_prob, nodes.accepted)
        )
        assert within_binomial_error(claimed * mix.trust**depth, hits)
        assert hits.max() <= 1


def test_positions_are_easy_in_the_share_of_their_kind():
    mix = Mix("", (1.0, 0.0), stretch=3)
    rows = concentrations(np.random.default_rng(0), mix, 9)
    easy = rows[:, 0] == EASY[0]
    assert easy.tolist() == [True] * 3 + [False] * 3 + [True] * 3
    half = concentrations(np.random.default_rng(0), Mix("", (0.25,)), 4000)
    assert within_binomial_error(np.full(4000, 0.25), half[:, 0] == EASY[0])


def test_a_tree_holds_what_any_width_and_depth_would_verify():
    """Of the same draws, the best nodes of all levels up to each; parents first."""
    rows = concentrations(np.random.default_rng(0), MIXES["bimodal"], 20)
    whole, nodes = (grow(np.random.default_rng(1), rows, 4, most) for most in (999, 30))
    assert np.all(nodes.parent < np.arange(len(nodes)))
    for depth in (1, 2, 4):
        best = []
        for trees in (whole, nodes):
            drafted = np.flatnonzero(trees.depth <= depth)
            prob, step = trees.path_prob[drafted], trees.step[drafted]
            best.append([np.sort(prob[step == s])[::-1][:30] for s in range(20)])
        assert np.array_equal(np.concatenate(best[0]), np.concatenate(best[1]))


def test_a_trace_is_dense_and_the_same_for_a_seed():
    """An unknown mix is refused with those there are."""
    trace = synthetic_trace("bimodal", prompts=2, tokens=20, context=7)
    assert trace.dense and len(trace.replies) == 2
    assert trace.context.tolist() == [*range(7, 27)] * 2
    again = synthetic_trace("bimodal", prompts=2, tokens=20)
    assert np.array_equal(again.nodes.path_prob, trace.nodes.path_prob)
    assert np.array_equal(again.nodes.depth, trace.nodes.depth)
    assert np.all(np.bincount(trace.nodes.step) >= NODES)
    with pytest.raises(ConfigError, match=r"'poems'; there are easy, hard"):
        synthetic_trace("poems")
